"""What every backend shares: compress, hand over to the engine, decompress into the gradient."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .. import agreement, env, plan
from ..agreement import Facts, Message
from ..auto.choice import Topology
from ..checkpoint import Place
from ..compression import CompressionParams, parse, stream, warn_of_ignored
from ..plan import Chunk, Tensor
from .channel import Channel, Sending
from .codec import MessageCodec, Part
from .gpus import GpuShares
from .gradient import Gradient, Gradients, legacy, params_for
from .messages import in_messages
from .sparse import SparseChannel

Arrays = Union[NDArray, Sequence[NDArray]]
States = List[Dict[str, np.ndarray]]
"""What a codec carries over, chunk by chunk."""


def _as_list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check_fits(arrays: Sequence[NDArray], tensor: Tensor) -> None:
    """Make sure that these can be exchanged as the tensor that was declared."""
    for array in arrays:
        size, dtype = math.prod(array.shape), np.dtype(array.dtype).name
        if (size, dtype) != (tensor.size, tensor.dtype):
            raise ValueError(
                f"{tensor.called} must have {tensor.size} elements of {tensor.dtype}, as when it "
                f"was declared; got shape {array.shape}, {size} elements of {dtype}"
            )


class CompressingKVStore(KVStoreBase):
    """Base of the backends: a `KVStoreBase` plug-in whose pushpull compresses.

    A backend supplies `_open` and `_exchange`. All calls are collective: every worker makes them
    with the same keys in the same order. `pushpull` returns at once; the result is there when the
    arrays are next read.

    Attributes
    ----------
    gradient_scale : float
        Multiplies what is pushed, before compression.
    learning_rate_ratio : float
        Previous learning rate over the current one, for error feedback that is not "vanilla".
    channels : list of Channel and SparseChannel
        All of them, in the order in which they were declared.
    when_declared : callable
        Is told the names of tensors once they can be exchanged.
    """

    rank = 0
    num_workers = 1
    spreads_aggregators = False  # over all workers, whose checkpoints have a part each

    def __init__(self) -> None:
        env.prepare_exchanges()
        self.local_rank = env.get("BYTEPS_LOCAL_RANK")
        self.local_size = env.get("BYTEPS_LOCAL_SIZE")
        self.gradient_scale = 1.0
        self.learning_rate_ratio = 1.0
        self._params = CompressionParams()
        self._tensors: Dict[str, Tensor] = {}
        self.channels: List[Union[Channel, SparseChannel]] = []
        self._aggregators: Dict[Channel, MessageCodec] = {}  # those that run in this process
        self.when_declared: Callable[[Set[str]], None] = lambda names: None
        self._entropy = b""
        self._factor: Optional[NDArray] = None  # of the exchange that is being queued
        self._ratios: Mapping[str, float] = {}  # of that exchange
        self._step = 0  # number of that exchange
        self._gpus = GpuShares(self._can_run_on_gpu)

    # What a backend supplies

    def topology(self) -> Optional[Topology]:
        """What connects the workers; None: no network."""

    def _compared(self, message: Message, call: str) -> Message:
        """The answer of `agreement.compare` to all workers' messages.

        `call` is the function of the user in which this worker waits for the others.
        """
        return agreement.compare([message])

    def _open(self, channels: Sequence[Channel]) -> None:
        """Make ready to exchange messages in these."""
        raise NotImplementedError

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        """Make ready to exchange rows in these."""

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> Tuple[RowSparseNDArray, Optional[NDArray]]:
        """The sum of what all workers have in `channel.sent`, and in which rows that is.

        `channel.sent` is made of the gradient already. The rows are told by all workers' lists, one
        below the other, or by None where no other rows come back.
        """
        raise NotImplementedError

    def _exchange(self, channels: Sequence[Channel], gradients: Gradients, priority: int) -> None:
        """Sum these gradients over all workers, the first channel's with most priority.

        `Channel.encode` gives what travels of what `_sending` says, and `Channel.deliver` takes
        what comes back.
        """
        raise NotImplementedError

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> Tuple[float, float]:
        """Bytes that this worker pushes and pulls in a channel in a step, so far on average.

        `done` is its meter.
        """
        if not done["calls"]:
            return channel.message_bytes, channel.message_bytes
        return done["sent_bytes"] / done["calls"], done["received_bytes"] / done["calls"]

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays, on which all workers have agreed, with those of `root_rank`."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is under way; nothing can be exchanged afterwards."""

    def abandon(self, why: str) -> None:
        """Tell the others that this worker leaves at once; nothing can be exchanged afterwards."""

    # Checkpoints

    def keeps_aggregator(self, channel: Channel) -> bool:
        """Whether this worker's checkpoint has what the aggregator of a channel carries over."""
        return channel in self._aggregators

    def aggregator_states(self, channels: Sequence[Channel]) -> Iterator[States]:
        """What the aggregator of each of these channels, which this worker keeps, carries over."""
        return (self._aggregators[channel].state() for channel in channels)

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Place, np.ndarray]
    ) -> Mapping[Place, np.ndarray]:
        """What `load_aggregators` needs of what all workers have; all of them call it."""
        return arrays

    def load_aggregators(
        self, channels: Sequence[Channel], states_of: Callable[[Channel], States]
    ) -> None:
        """Let the aggregators of these channels go on from states; all workers call it.

        Servers take those of rank 0.
        """
        for channel in channels:
            if channel in self._aggregators:
                self._aggregators[channel].load_state(states_of(channel))

    def first_stream(self, chunk: Chunk, node: str) -> np.ndarray:
        """The state that the random stream of this worker, or the aggregator, starts from."""
        number = self.place(chunk)[0] if node == "worker" else None
        return np.array(self._start(chunk, number), np.uint64)

    # MXNet's KVStoreBase

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress what is declared from now on; see `DistributedTrainer`.

        Raises
        ------
        ValueError
            Also for "momentum", whose value a plain Trainer does not tell, and for "auto".
        """
        self._params = parse(compression_params).require_chosen()
        warn_of_ignored(compression_params)

    def broadcast(self, key: Any, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Overwrite `out` with rank 0's `value`, and expect gradients of its shape under `key`."""
        result = value.as_nd_ndarray().copy()
        self.broadcast_all([result], root_rank=0)
        for array in legacy(_as_list(out)):
            result.copyto(array)
        if not self.declared(str(key)):
            dtype = np.dtype(value.dtype).name
            index, called = len(self._tensors), f"the gradient of key {key}"
            on_nonfinite = "propagate" if self._params.compressor is None else "raise"
            params = params_for(value, self._params)
            tensor = Tensor(str(key), value.size, dtype, params, index, called, on_nonfinite)
            self.declare([tensor])

    def pushpull(self, key: Any, value: Any, out: Optional[Any] = None, priority: int = 0) -> None:
        """Sum each value over contexts and workers, into `out` if given, else in place.

        Parameters
        ----------
        key : key or list of keys
            As declared.
        value : NDArray or list of NDArray; for a list of keys, a list of those
            One array a context.
        out : as value, optional
            Where the sum is written; what is not in it, is left alone.
        priority : int
            Of the first chunk; later chunks have lower ones.

        Raises
        ------
        KeyError
            A key was not declared.
        ValueError
            A value has another number of elements, or another dtype, than was declared.
        """
        keys, values, outs = [key], [value], [out]
        if isinstance(key, (list, tuple)):
            keys, values = list(key), list(value)
            outs = list(out) if out is not None else [None] * len(keys)
        gradients = {}
        for name, arrays, targets in zip(keys, values, outs):
            if not self.declared(str(name)):
                raise KeyError(f"key {name!r} was not declared or broadcast")
            arrays = _as_list(arrays)
            targets = arrays if targets is None else _as_list(targets)
            gradients[str(name)] = self.gradient(str(name), arrays, targets)
        self.exchange(gradients, priority)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the optimizer can run in the store: no."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"Unknown capability: {capability}")

    # The trainer's

    def agree(self, call: str, facts: Facts = ()) -> None:
        """Return when all workers have come here.

        Parameters
        ----------
        call : str
            The function of the user that does this.
        facts : Facts, optional
            What all workers must have in common.

        Raises
        ------
        RuntimeError
            Workers make another call, or state other facts.
        """
        called = [("", {"call": call}), *facts]
        agreement.reach(self.rank, called, lambda message: self._compared(message, call))

    def gradient(
        self, name: str, arrays: Sequence[NDArray], targets: Sequence[NDArray]
    ) -> Gradient:
        """What `exchange` takes, of a tensor that was declared."""
        check_fits(arrays, self._tensors[name])
        return Gradient(arrays, targets, "row_sparse" if self._tensors[name].rows else "default")

    def exchange(
        self,
        gradients: Gradients,
        priority: int = 0,
        factor: Optional[NDArray] = None,
        ratios: Optional[Mapping[str, float]] = None,
    ) -> None:
        """Sum over contexts and workers, as `pushpull` does.

        A `factor`, float64 of shape (1,), multiplies what this worker pushes. `ratios` are by
        tensor, where that is not `learning_rate_ratio`.
        """
        self._factor, self._ratios = factor, ratios or {}
        self._step += 1
        channels = self.channels_of(gradients)
        dense = [channel for channel in channels if isinstance(channel, Channel)]
        for channel, gpu in zip(dense, self._gpus.of(dense, gradients)):
            channel.move_to(gpu)
        self._exchange(dense, gradients, priority)
        for number, channel in enumerate(channels):
            if isinstance(channel, SparseChannel):
                (name,) = channel.tensors
                gradient = gradients[name]
                channel.encode(gradient, self.gradient_scale, factor, self._step)
                rows, lists = self._exchange_rows(channel, gradient, priority - number)
                channel.deliver(rows, gradient, lists)
        for gradient in gradients.values():
            gradient.finish()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within, values travel unscaled, and exchanges are not counted as steps."""
        scale, step = self.gradient_scale, self._step
        self.gradient_scale = 1.0
        try:
            yield
        finally:
            self.gradient_scale, self._step = scale, step

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        """Whether a channel's gradients can be compressed on the GPU that they are on."""
        return channel.runs_on_gpu

    def declare(
        self,
        tensors: Iterable[Tensor],
        minimum: Optional[int] = None,
        about: Facts = (),
        bundled: bool = True,
        call: str = "step",
    ) -> None:
        """Expect pushpull of these tensors; those declared together may travel fused.

        Smaller ones than `minimum` bytes, or else BYTEPS_MIN_COMPRESS_BYTES, are not compressed.
        Unless they are `bundled`, compressed tensors share no messages. `call` and `about` are
        compared as by `agree`.

        Raises
        ------
        ValueError
            A tensor of that name exists already.
        RuntimeError
            Workers declare other tensors.
        """
        tensors = list(tensors)
        for tensor in tensors:
            if self.declared(tensor.name):
                raise ValueError(f"tensor '{tensor.name}' is declared already")
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES") if minimum is None else minimum
        sparse = [t for t in tensors if t.rows and not plan.travels_compressed(t, minimum)]
        others = [tensor for tensor in tensors if tensor not in sparse]
        chunks = plan.cut(others, env.get("BYTEPS_PARTITION_BYTES"), minimum)
        self.agree(call, [*about, *plan.facts(tensors)])
        self._tensors.update((tensor.name, tensor) for tensor in tensors)
        owners = self.num_workers if self.spreads_aggregators else 1
        channels = [
            Channel(message, self._tensors, [self._start(c, self.place(c)[0]) for c in message])
            for message in in_messages(chunks, owners, bundled)
        ]
        in_rows = [SparseChannel(tensor) for tensor in sparse]
        self._open(channels)
        self._open_rows(in_rows)
        self.channels += [*channels, *in_rows]
        self.when_declared({tensor.name for tensor in tensors})

    def withdraw(self, names: Collection[str]) -> List[Tensor]:
        """Expect these tensors no longer, and return them; all workers call this alike.

        No other tensor may share a message with them.
        """
        withdrawn = self.channels_of(names)
        self.channels = [channel for channel in self.channels if channel not in withdrawn]
        for channel in withdrawn:
            self._forget(channel)
        return [self._tensors.pop(name) for name in list(self._tensors) if name in names]

    def _forget(self, channel: Union[Channel, SparseChannel]) -> None:
        """Free what is kept for a channel in which nothing will be exchanged any more."""
        self._aggregators.pop(channel, None)

    def broadcast_all(
        self, arrays: Sequence[NDArray], root_rank: int, called: Optional[Sequence[str]] = None
    ) -> None:
        """Overwrite arrays with those of worker `root_rank`.

        Raises
        ------
        ValueError
            There is no such worker.
        RuntimeError
            Workers have other arrays, by what they are called, or another root_rank.
        """
        if not 0 <= root_rank < self.num_workers:
            raise ValueError(f"root_rank must be in [0, {self.num_workers}), got {root_rank}")
        names = called or [f"array {number}" for number in range(len(arrays))]
        described = [
            (name, {"shape": array.shape, "dtype": np.dtype(array.dtype).name})
            for name, array in zip(names, arrays)
        ]
        self.agree("broadcast_parameters", [("", {"root_rank": root_rank}), *described])
        self._broadcast(arrays, root_rank)

    def broadcast_copies(
        self, copies: Sequence[Tuple[str, Sequence[NDArray]]], root_rank: int
    ) -> None:
        """Overwrite all copies (one a context) of each array with those of worker `root_rank`.

        Beside the copies of an array stands its name in errors.
        """
        if not copies:
            return
        names, arrays = zip(*((name, legacy(of_array)) for name, of_array in copies))
        self.broadcast_all([first for first, *_ in arrays], root_rank, names)
        for first, *others in arrays:
            for other in others:
                first.copyto(other)

    def nonfinite(self, names: Collection[str]) -> int:
        """How often there was a NaN or an infinity in what came back of a chunk of these tensors.

        The same on all workers; waits until all exchanges are done. What may propagate, and
        travels uncompressed, does not count.
        """
        return sum(channel.nonfinite() for channel in self.channels_of(names))

    def set_epoch(self, names: Collection[str], epoch: int) -> None:
        """Compress these tensors as their compressors do in an epoch, counted from 0."""
        for channel in self.channels_of(names):
            if channel.codec is not None:
                channel.codec.set_epoch(epoch)

    def channels_of(self, names: Collection[str]) -> List[Channel]:
        """Those in which these tensors travel."""
        return [channel for channel in self.channels if not channel.tensors.isdisjoint(names)]

    def declared(self, name: str) -> bool:
        """Whether a tensor of that name can be exchanged."""
        return name in self._tensors

    def _sending(self, gradients: Gradients) -> Sending:
        """What is sent of these in the exchange that is being queued."""
        ratio = self.learning_rate_ratio
        scale, factor = self.gradient_scale, self._factor
        return Sending(gradients, scale, ratio, self._ratios, factor, self._step)

    def _aggregator(self, channel: Channel) -> MessageCodec:
        """What aggregates a channel's messages."""
        starts = [self._start(chunk, node=None) for chunk in channel.chunks]
        parts = [Part(chunk.size, start) for chunk, start in zip(channel.chunks, starts)]
        return MessageCodec(channel.params.aggregators, channel.dtype, parts)

    # Random streams

    def place(self, chunk: Chunk) -> Tuple[int, int]:
        """This worker's number among those who exchange a chunk, and how many they are."""
        return self.rank, self.num_workers

    def _start(self, chunk: Chunk, node: Optional[int]) -> Optional[stream.State]:
        """Where a node's stream for a compressed chunk starts, if its compressor draws.

        `node` is a worker's number; None: the aggregator.
        """
        if chunk.params is None or not chunk.params.compressor.traits.draws:
            return None
        if chunk.params.compressor.seed is None and not self._entropy:
            self._entropy = self._shared_entropy()
        (piece,) = chunk.slices
        index = self._tensors[piece.tensor].index
        return stream.start(chunk.params, chunk.size, node, index, piece.begin, self._entropy)

    def _shared_entropy(self) -> bytes:
        """Sixteen random bytes, those of rank 0 on all workers."""
        words = mx.nd.array(np.frombuffer(os.urandom(16), np.int64), dtype="int64")
        self.broadcast_all([words], root_rank=0)
        return words.asnumpy().tobytes()

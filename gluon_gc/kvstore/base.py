"""What every backend shares: compress, hand over to the engine, decompress into the gradient."""

from __future__ import annotations

import math
import os
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .. import env, operators
from ..checkpoint import Layout
from ..compression import (
    Codec,
    CompressionParams,
    parse,
    state_layout,
    stream,
    warn_of_ignored,
)
from . import plan
from .finite import FiniteCheck
from .gradient import Gradient, Gradients, defuse, fuse
from .plan import Chunk, Tensor

Arrays = Union[NDArray, Sequence[NDArray]]
STATS = ("pushed_bytes", "pulled_bytes", "compress_seconds", "wait_seconds", "decompress_seconds")
"""What `CompressingKVStore.stats` tells of a tensor."""


def _as_list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _check(arrays: Sequence[NDArray], tensor: Tensor) -> None:
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
        Previous learning rate over the current one, for corrected error feedback.
    """

    rank = 0
    num_workers = 1

    def __init__(self) -> None:
        self.local_rank = env.get("BYTEPS_LOCAL_RANK")
        self.local_size = env.get("BYTEPS_LOCAL_SIZE")
        self.gradient_scale = 1.0
        self.learning_rate_ratio = 1.0
        self._params = CompressionParams()
        self._tensors: Dict[str, Tensor] = {}
        self._chunks: List[Chunk] = []
        self._codecs: Dict[Chunk, Codec] = {}
        self._finite_checks: Dict[Chunk, FiniteCheck] = {}
        self._entropy = b""

    # What a backend supplies

    def _agree(self, about: Mapping[str, Any]) -> None:
        """Make sure that all workers are about to do the same: `about` it."""

    def _open(self, chunks: Sequence[Chunk]) -> None:
        """Make ready to exchange these chunks."""
        raise NotImplementedError

    def _exchange(self, chunks: Sequence[Chunk], gradients: Gradients, priority: int) -> None:
        """Sum the chunks of these gradients over all workers, the first with most priority.

        `_values` and `_encoded` give what travels of a chunk; `_deliver` takes what comes back.
        """
        raise NotImplementedError

    def _message_bytes(self, chunk: Chunk, done: Mapping[str, float]) -> Tuple[float, float]:
        """Bytes that this worker pushes and pulls for a chunk in a step, so far on average.

        `done` is the meter of its codec, empty without one.
        """
        if not done.get("calls"):
            return chunk.message_bytes, chunk.message_bytes
        return done["sent_bytes"] / done["calls"], done["received_bytes"] / done["calls"]

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of worker `root_rank`."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is under way; nothing can be exchanged afterwards."""

    def abandon(self, why: str) -> None:
        """Tell the others that this worker leaves at once; nothing can be exchanged afterwards."""

    def _agree_to_broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Make sure that there is such a worker, and that all have arrays alike."""
        if not 0 <= root_rank < self.num_workers:
            raise ValueError(f"root_rank must be in [0, {self.num_workers}), got {root_rank}")
        shapes = [(array.shape, np.dtype(array.dtype).name) for array in arrays]
        self._agree({"parameters to broadcast": shapes, "root_rank": root_rank})

    # MXNet's KVStoreBase

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Compress what is declared from now on; see `DistributedTrainer`.

        Raises
        ------
        ValueError
            Also for "momentum", whose value a plain Trainer does not tell.
        """
        self._params = parse(compression_params)
        warn_of_ignored(compression_params)

    def broadcast(self, key: Any, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Overwrite `out` with rank 0's `value`, and expect gradients of its shape under `key`."""
        result = value.copy()
        self.broadcast_all([result], root_rank=0)
        for array in _as_list(out):
            result.copyto(array)
        if not self.declared(str(key)):
            dtype = np.dtype(value.dtype).name
            index, called = len(self._tensors), f"the gradient of key {key}"
            on_nonfinite = "propagate" if self._params.compressor is None else "raise"
            tensor = Tensor(str(key), value.size, dtype, self._params, index, called, on_nonfinite)
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
            _check(arrays, self._tensors[str(name)])
            gradients[str(name)] = Gradient(arrays, targets)
        chunks = [c for c in self._chunks if any(p.tensor in gradients for p in c.slices)]
        self._exchange(chunks, gradients, priority)
        for gradient in gradients.values():
            gradient.finish()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the optimizer can run in the store: no."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"Unknown capability: {capability}")

    # The trainer's

    def declare(self, tensors: Iterable[Tensor]) -> None:
        """Expect pushpull of these tensors; those declared together may travel fused.

        Raises
        ------
        ValueError
            A tensor of that name exists already.
        """
        tensors = list(tensors)
        for tensor in tensors:
            if self.declared(tensor.name):
                raise ValueError(f"tensor '{tensor.name}' is declared already")
            self._tensors[tensor.name] = tensor
        chunks = plan.cut(
            tensors, env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        )
        self._agree(plan.described(chunks))
        for chunk in chunks:
            if chunk.params is not None:
                self._codecs[chunk] = Codec(
                    chunk.params,
                    chunk.size,
                    chunk.dtype,
                    self._start(chunk, node=self._place(chunk)[0]),
                    self._tensors[chunk.slices[0].tensor].refused,
                )
        checks = {chunk: FiniteCheck.of(chunk, self._tensors) for chunk in chunks}
        self._finite_checks.update((c, check) for c, check in checks.items() if check)
        self._open(chunks)
        self._chunks.extend(chunks)

    def broadcast_copies(self, copies: Sequence[Sequence[NDArray]], root_rank: int) -> None:
        """Overwrite all copies (one a context) of each array with those of worker `root_rank`."""
        if not copies:
            return
        self.broadcast_all([arrays[0] for arrays in copies], root_rank)
        for first, *others in copies:
            for other in others:
                first.copyto(other)

    def stats(self) -> Dict[str, Dict[str, float]]:
        """What this worker does in a step, on average, for each tensor.

        pushed_bytes and pulled_bytes of messages; compress_seconds, wait_seconds and
        decompress_seconds, summed over chunks, though these may be at work at the same time. Waits
        until all exchanges are done.
        """
        stats = {name: dict.fromkeys(STATS, 0.0) for name in self._tensors}
        for chunk in self._chunks:
            done = self._codecs[chunk].meter() if chunk in self._codecs else {}
            calls = done.get("calls", 0)
            bytes_ = dict(zip(STATS, self._message_bytes(chunk, done)))
            for piece in chunk.slices:
                share = piece.size / chunk.size
                for field in STATS:
                    value = bytes_[field] if field in bytes_ else calls and done[field] / calls
                    stats[piece.tensor][field] += share * value
        return stats

    def nonfinite(self, names: Collection[str]) -> int:
        """How often there was a NaN or an infinity in what came back of a chunk of these tensors.

        The same on all workers; waits until all exchanges are done. What may propagate, and
        travels uncompressed, does not count.
        """
        compressed = [self._codecs[c].meter()["nonfinite"] for c in self._compressed(names)]
        checks = self._finite_checks.items()
        plain = [check.nonfinite() for c, check in checks if c.slices[0].tensor in names]
        return int(sum(compressed + plain))

    def set_epoch(self, names: Collection[str], epoch: int) -> None:
        """Compress these tensors as their compressors do in an epoch, counted from 0."""
        for chunk in self._compressed(names):
            self._codecs[chunk].set_epoch(epoch)

    def declared(self, name: str) -> bool:
        """Whether a tensor of that name can be exchanged."""
        return name in self._tensors

    def _compressed(self, names: Collection[str]) -> List[Chunk]:
        return [chunk for chunk in self._codecs if chunk.slices[0].tensor in names]

    # Checkpoints: arrays by "INDEX/BEGIN-END/NODE/NAME", of the tensor, its slice, and what is
    # carried over by "worker" or "aggregator"

    def state(self, names: Collection[str]) -> Dict[str, np.ndarray]:
        """Residuals and momentum of these tensors, for a checkpoint."""
        chunks = self._compressed(names)
        aggregators = self._aggregator_states([c for c in chunks if self._keeps_aggregator(c)])
        return {
            self._path(chunk, node, name): array
            for chunk in chunks
            for node, state in (
                ("worker", self._codecs[chunk].state()),
                ("aggregator", aggregators.get(chunk, {})),
            )
            for name, array in state.items()
        }

    def state_layout(self, names: Collection[str]) -> Layout:
        """Shape and dtype of each array of the state of these tensors."""
        return {
            self._path(chunk, node, name): of_array
            for chunk in self._compressed(names)
            for node in self._nodes(chunk)
            for name, of_array in self._node_layout(chunk, node).items()
        }

    def load_state(self, names: Collection[str], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, whose arrays are as `state_layout` says."""
        for chunk in self._compressed(names):
            for node in self._nodes(chunk):
                state = {
                    name: arrays[self._path(chunk, node, name)]
                    for name in self._node_layout(chunk, node)
                }
                if node == "worker":
                    self._codecs[chunk].load_state(state)
                else:
                    self._load_aggregator_state(chunk, state)

    def _path(self, chunk: Chunk, node: str, name: str) -> str:
        (piece,) = chunk.slices
        return f"{self._tensors[piece.tensor].index}/{piece.begin}-{piece.end}/{node}/{name}"

    def _nodes(self, chunk: Chunk) -> Tuple[str, ...]:
        return ("worker", "aggregator") if self._keeps_aggregator(chunk) else ("worker",)

    @staticmethod
    def _node_layout(chunk: Chunk, node: str) -> Layout:
        params = chunk.params if node == "worker" else chunk.params.aggregators
        return state_layout(params, chunk.size, chunk.dtype)

    def _keeps_aggregator(self, chunk: Chunk) -> bool:
        """Whether this worker's checkpoint has what the aggregator of a chunk carries over."""
        return False

    def _aggregator_states(self, chunks: Sequence[Chunk]) -> Dict[Chunk, Dict[str, np.ndarray]]:
        """What the aggregators of these chunks, which this worker keeps, carry over."""
        return {}

    def _load_aggregator_state(self, chunk: Chunk, state: Mapping[str, np.ndarray]) -> None:
        """Let the aggregator of a chunk go on from that."""

    # Random streams

    def _place(self, chunk: Chunk) -> Tuple[int, int]:
        """This worker's number among those who exchange a chunk, and how many they are."""
        return self.rank, self.num_workers

    def _start(self, chunk: Chunk, node: int) -> Optional[stream.State]:
        """Where a node's stream for a compressed chunk starts, if its compressor draws."""
        compressor = chunk.params.compressor
        if not compressor.draws:
            return None
        if compressor.seed is None and not self._entropy:
            self._entropy = self._shared_entropy()
        (piece,) = chunk.slices
        index = self._tensors[piece.tensor].index
        return stream.start(compressor, chunk.size, node, index, piece.begin, self._entropy)

    def _shared_entropy(self) -> bytes:
        """Sixteen random bytes, those of rank 0 on all workers."""
        words = mx.nd.array(np.frombuffer(os.urandom(16), np.int64), dtype="int64")
        self.broadcast_all([words], root_rank=0)
        return words.asnumpy().tobytes()

    # A step

    def _values(self, chunk: Chunk, gradients: Gradients) -> NDArray:
        """This worker's part of a chunk; as it travels, if that is uncompressed."""
        if chunk.params is None:
            return fuse(chunk, gradients, self.gradient_scale)
        (piece,) = chunk.slices
        if piece.tensor not in gradients:  # it travels with others that take part in this step
            return mx.nd.zeros(chunk.size, dtype=chunk.dtype)
        values = gradients[piece.tensor].own(piece)
        return operators.float_from_half(values) if values.dtype == np.float16 else values

    def _encoded(self, chunk: Chunk, values: NDArray) -> NDArray:
        """What travels of these values: themselves, or their payload."""
        if chunk.params is None:
            return values
        codec = self._codecs[chunk]
        return codec.compress(values, self.gradient_scale, self.learning_rate_ratio)

    def _deliver(self, chunk: Chunk, received: NDArray, gradients: Gradients) -> None:
        """Write what came back of a chunk to its gradients."""
        if chunk.params is None:
            if chunk in self._finite_checks:
                self._finite_checks[chunk].check(received, gradients)
            defuse(chunk, received, gradients)
            return
        (piece,) = chunk.slices
        if piece.tensor not in gradients:
            return
        gradient = gradients[piece.tensor].result(piece)
        codec = self._codecs[chunk]
        if gradient.dtype == np.float16:
            operators.half_from_float(codec.decompress(received)).copyto(gradient)
        else:
            codec.decompress(received, out=gradient)

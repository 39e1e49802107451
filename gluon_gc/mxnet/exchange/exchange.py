"""The base class of all backends: compress gradients, exchange them, decompress the averages."""

from __future__ import annotations

import gc
import weakref
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
    Sequence,
)

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import env
from ...auto.choice import Topology
from ...compression import CompressionParams, stream
from ...exchange import agreement, plan
from ...exchange.agreement import Facts, Message
from ...exchange.coder import StreamStarts
from ...exchange.plan import Chunk, Tensor
from ...state import Key
from .channel import AnyCoder, Channel
from .channels import AnyChannel, Channels, gpus_of, in_messages
from .coder import MessageCoder, Part
from .gradient import Gradient, Job, copy_first, legacy
from .sparse import SparseChannel

States = List[Dict[str, np.ndarray]]
"""The states of a coder: one dict of arrays for each chunk."""
_MOST_DROPPED = 64  # trainers that `withdraw_dropped` looks at together, the oldest first


class Exchange:
    """Sums compressed gradients over all workers; the base class of the backends.

    A backend implements `_open`, `_exchange`, `_exchange_rows`, `_broadcast` and `_compared`. All
    calls are collective: every worker makes them for the same tensors in the same order. `start`
    returns at once. A later read of the gradients waits for the result.
    """

    type = ""
    rank = 0
    num_workers = 1
    assigns_aggregators = False  # whether each worker runs, and saves, some of the aggregators

    def __init__(self) -> None:
        env.prepare_exchanges()
        self.local_rank = env.get("BYTEPS_LOCAL_RANK")
        self.local_size = env.get("BYTEPS_LOCAL_SIZE")
        self.channels = Channels()
        # By NAME, each `Averaging`, whose tensors are named "NAME....", in one order on all
        # workers.
        self.averagings: dict[str, weakref.ref] = {}
        self._aggregators: dict[Channel, MessageCoder] = {}  # that run in this process
        self.when_declared: Callable[[set[str]], None] = lambda names: None  # gets new tensors
        self._streams = StreamStarts(self.bytes_of_root)
        self._step = 0  # the number of the last exchange

    def living_averagings(self) -> list[Any]:
        """The `Averaging`s of trainers that exist."""
        averagings = (reference() for reference in self.averagings.values())
        return [averaging for averaging in averagings if averaging is not None]

    # A backend implements these

    def topology(self) -> Topology | None:
        """The machines and servers that the network connects; None: there is no network."""

    def _compared(self, message: Message, call: str) -> Message:
        """The answer of `agreement.compare` to all workers, which wait in the user's `call`."""
        return agreement.compare([message])

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of `root_rank`; the workers already agree on them."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish all exchanges. The backend is unusable afterwards."""

    def abandon(self, why: str) -> None:
        """Tell the others that this worker leaves at once. The backend is unusable afterwards."""

    def _open(self, channels: Sequence[Channel]) -> None:
        raise NotImplementedError

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        """Prepare these channels for rows."""

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        """Sum a job's gradients over all workers: `Channel.encode`, send, `Channel.deliver`."""
        raise NotImplementedError

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> tuple[RowSparseNDArray, NDArray | None]:
        """Sum `channel.sent` over all workers, after `SparseChannel.encode`.

        Returns the rows of the sum and, unless every row is in one of them, all workers' row lists,
        one below the other, for `SparseChannel.deliver`.
        """
        raise NotImplementedError

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        return channel.runs_on_gpu

    def _keep_earlier(self, channels: Sequence[Channel]) -> None:
        for channel in channels:
            for coder in self._coders(channel):
                coder.keep_earlier()

    def _take_back(self, channels: Sequence[Channel]) -> None:
        for channel in channels:
            for coder in self._coders(channel):
                coder.take_back()

    def _coders(self, channel: Channel) -> list[AnyCoder]:
        aggregator = self._aggregators.get(channel)
        return [channel.coder] if aggregator is None else [channel.coder, aggregator]

    def _forget(self, channel: AnyChannel) -> None:
        """Free the memory of a channel that is no longer used."""
        self._aggregators.pop(channel, None)

    def sender(self, chunk: Chunk) -> tuple[int, int]:
        """This worker's rank among the workers that exchange a chunk, and how many they are."""
        return self.rank, self.num_workers

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> tuple[float, float]:
        """Bytes that this worker pushes and pulls in a step; `done` is the meter's reading."""
        if not done["calls"]:
            return channel.message_bytes, channel.message_bytes
        return done["sent_bytes"] / done["calls"], done["received_bytes"] / done["calls"]

    def compresses(self, channel: Channel) -> bool:
        """Whether this worker has the residual of a channel, not another one of its machine."""
        return True

    # All workers agree

    def agree(self, call: str, facts: Facts = ()) -> None:
        """Return when all workers have called this for the user's `call`, with the same facts."""
        called = [("", {"call": call}), *facts]
        agreement.reach(self.rank, called, lambda message: self._compared(message, call))

    def agrees(self, call: str, facts: Facts) -> bool:
        try:
            self.agree(call, facts)
        except RuntimeError:
            return False
        return True

    # Values that are not gradients

    def broadcast(
        self, arrays: Sequence[NDArray], root_rank: int, called: Sequence[str] | None = None
    ) -> None:
        """Overwrite arrays, with the names `called` in errors, with those of worker `root_rank`."""
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
        self, copies: Sequence[tuple[str, Sequence[NDArray]]], root_rank: int
    ) -> None:
        """As `broadcast`, of named arrays that have a copy on each context."""
        if not copies:
            return
        names, arrays = zip(*((name, legacy(array_copies)) for name, array_copies in copies))
        self.broadcast([first for first, *_ in arrays], root_rank, names)
        for copies_of_one in arrays:
            copy_first(copies_of_one)

    def bytes_of_root(self, own: bytes) -> bytes:
        """Rank 0's bytes. All workers pass the same number of bytes."""
        array = mx.nd.array(np.frombuffer(own, np.uint8), dtype="uint8")
        self.broadcast([array], root_rank=0)
        return array.asnumpy().tobytes()

    def total(self, name: str, array: NDArray, call: str, about: Facts = ()) -> NDArray:
        """Sum a small array, such as flags, over all workers in place, uncompressed; return it.

        All arrays of one name have the same size and dtype. The workers compare `about` in the
        first call with this name, for the user's function `call`.
        """
        if not self.declared(name):
            dtype = np.dtype(array.dtype).name
            tensor = Tensor(name, array.size, dtype, CompressionParams())
            self.declare([tensor], about=about, call=call)
        self.sum_in_place({name: array})
        return array

    def total_of_parts(
        self, name: str, parts: Sequence[np.ndarray], call: str, about: Facts = ()
    ) -> list[np.ndarray]:
        """As `total`, of several float64 arrays of one shape in one exchange; waits for it."""
        array = mx.nd.array(np.concatenate([part.reshape(-1) for part in parts]), dtype="float64")
        sums = np.split(self.total(name, array, call, about).asnumpy(), len(parts))
        return [part.reshape(parts[0].shape) for part in sums]

    # Set-up

    def declare(
        self,
        tensors: Iterable[Tensor],
        minimum: int | None = None,
        about: Facts = (),
        share_messages: bool = True,
        call: str = "step",
    ) -> None:
        """Prepare to exchange these tensors. If `share_messages`, a message may have several.

        Tensors of fewer than `minimum` bytes (by default BYTEPS_MIN_COMPRESS_BYTES) are not
        compressed. The workers also compare `about`.
        """
        tensors = list(tensors)
        self.channels.require_new(tensors)
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES") if minimum is None else minimum
        plan.warn_if_uncompressed(tensors, minimum)
        sparse = [t for t in tensors if t.rows and not plan.travels_compressed(t, minimum)]
        dense = [tensor for tensor in tensors if tensor not in sparse]
        chunks = plan.cut(dense, env.get("BYTEPS_PARTITION_BYTES"), minimum)
        self.agree(call, [*about, *plan.facts(tensors)])
        self._streams.draw(chunks)
        declared_tensors = self.channels.tensors
        declared_tensors.update((tensor.name, tensor) for tensor in tensors)
        owners = self.num_workers if self.assigns_aggregators else 1
        channels = [
            Channel(message, declared_tensors, [self._start(c, self.sender(c)[0]) for c in message])
            for message in in_messages(chunks, owners, share_messages)
        ]
        in_rows = [SparseChannel(tensor) for tensor in sparse]
        self._open(channels)
        self._open_rows(in_rows)
        self.channels.add([*channels, *in_rows])
        self.when_declared({tensor.name for tensor in tensors})

    def declared(self, name: str) -> bool:
        return name in self.channels.tensors

    def withdraw(self, names: Collection[str]) -> list[Tensor]:
        """Remove these tensors, which share no messages with others; waits for all exchanges."""
        mx.nd.waitall()
        for channel in self.channels.hide(names):
            self._forget(channel)
        declared_tensors = self.channels.tensors
        return [declared_tensors.pop(name) for name in list(declared_tensors) if name in names]

    def withdraw_dropped(self, call: str, about: Facts) -> None:
        """Withdraw the tensors of trainers that no worker has any more.

        Python frees a trainer at another time on each worker, so all workers withdraw its tensors
        together, when another trainer declares its own. If there are several trainers, the call
        waits for all exchanges.
        """
        averagings = list(self.averagings.items())[:_MOST_DROPPED]
        if len(self.averagings) < 2:
            return
        names = [name for name, _ in averagings]
        self.agree(call, [*about, ("the process", {"trainers": names})])
        gc.collect()  # a trainer refers to itself
        dropped = np.zeros(_MOST_DROPPED, np.float32)
        dropped[: len(names)] = [averaging() is None for _, averaging in averagings]
        on_workers = self.total("dropped", mx.nd.array(dropped), call).asnumpy()
        for name, workers in zip(names, on_workers):
            if workers == self.num_workers:
                del self.averagings[name]
                tensors = self.channels.tensors
                self.withdraw([tensor for tensor in tensors if tensor.startswith(f"{name}.")])

    # Exchanges

    def start(self, job: Job, priority: int = 0) -> None:
        """Sum a job's gradients over contexts and workers; the first message has `priority`."""
        self._step += 1
        job.step = self._step
        channels = self.channels.of(job.gradients)
        dense = [channel for channel in channels if isinstance(channel, Channel)]
        for channel, gpu in zip(dense, gpus_of(dense, job.gradients, self._can_run_on_gpu)):
            channel.move_to(gpu)
        self._exchange(dense, job, priority)
        for number, channel in enumerate(channels):
            if isinstance(channel, SparseChannel):
                gradient = job.gradients[channel.tensor]
                channel.encode(gradient, job)
                rows, lists = self._exchange_rows(channel, gradient, priority - number)
                channel.deliver(rows, gradient, lists)
        for gradient in job.gradients.values():
            gradient.finish()

    def sum_in_place(
        self, arrays: Mapping[str, NDArray], scale: float = 1.0, priority: int = 0
    ) -> None:
        """Replace each declared tensor's array by `scale` times its sum over all workers."""
        gradients = {
            name: self.channels.gradient(name, [array], [array]) for name, array in arrays.items()
        }
        self.start(Job(gradients, scale), priority)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """In this context, exchanges do not count as steps."""
        step = self._step
        try:
            yield
        finally:
            self._step = step

    # Exchanges that are taken back

    def keep_earlier(self, names: Collection[str]) -> None:
        """Let `take_back` undo exchanges of these tensors from now on, on all workers."""
        new = [c for c in self.channels.of(names) if c.coder is not None and not c.undoable]
        self._keep_earlier(new)
        for channel in new:
            channel.undoable = True

    def take_back(self, names: Collection[str]) -> None:
        """Return residuals, momentum and random streams to their state before these exchanges."""
        self._take_back([c for c in self.channels.of(names) if c.coder is not None])

    # Aggregators and their states in checkpoints

    def _aggregator(self, channel: Channel) -> MessageCoder:
        parts = [Part(chunk.size, self._start(chunk, node=None)) for chunk in channel.chunks]
        return MessageCoder(channel.params.aggregators, channel.dtype, parts)

    def keeps_aggregator(self, channel: Channel) -> bool:
        """Whether this worker's checkpoint has the state of a channel's aggregator."""
        return channel in self._aggregators

    def aggregator_states(self, channels: Sequence[Channel]) -> Iterator[States]:
        return (self._aggregators[channel].state() for channel in channels)

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Key, np.ndarray]
    ) -> Mapping[Key, np.ndarray]:
        """Collect the arrays of all workers that `load_aggregators` needs; all workers call it."""
        return arrays

    def load_aggregators(
        self, channels: Sequence[Channel], states_of: Callable[[Channel], States]
    ) -> None:
        """Restore the states of these aggregators, on all workers; servers take those of rank 0."""
        for channel in channels:
            if channel in self._aggregators:
                self._aggregators[channel].load_state(states_of(channel))

    # Random streams

    def first_stream(self, chunk: Chunk, node: str) -> np.ndarray:
        """The first state of a chunk's random stream on a "worker" or "aggregator"."""
        number = self.sender(chunk)[0] if node == "worker" else None
        return np.array(self._start(chunk, number), np.uint64)

    def _start(self, chunk: Chunk, node: int | None) -> stream.State | None:
        """The first state of a chunk's random stream on worker `node`; None: on the aggregator."""
        if chunk.params is None:
            return None
        (piece,) = chunk.slices
        index = self.channels.tensors[piece.tensor].index
        return self._streams.start(chunk, node, index, piece.begin)

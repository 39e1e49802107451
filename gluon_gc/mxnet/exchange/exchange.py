"""The base class of all backends: compress gradients, exchange them, decompress the averages."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import (
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
)

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import env, plan
from ...agreement import Facts
from ...compression import stream
from ...plan import Chunk, Tensor
from ...random_streams import StreamStarts
from ...state import Place
from .channel import AnyCodec, Channel
from .channels import AnyChannel, Channels
from .codec import MessageCodec, Part
from .gpus import GpuShares
from .gradient import Gradient
from .job import Job
from .messages import in_messages
from .sparse import SparseChannel
from .worker_group import WorkerGroup

States = List[Dict[str, np.ndarray]]
"""The states of a codec: one dict of arrays for each chunk."""


class Exchange(WorkerGroup):
    """Sums compressed gradients over all workers; the base class of the backends.

    A backend implements `_open`, `_exchange`, `_exchange_rows` and `_broadcast`. All calls are
    collective: every worker makes them for the same tensors in the same order. `start` returns at
    once. A later read of the gradients waits for the result.

    Attributes
    ----------
    channels : Channels
        The declared tensors, and the channels that carry them.
    owners : dict
        Weak references to each `Averaging`, whose tensors are named "NAME....", by NAME, in the
        same order on all workers.
    when_declared : callable
        Is called with the names of new tensors after they are declared.
    """

    spreads_aggregators = False  # whether each worker runs, and saves, some of the aggregators

    def __init__(self) -> None:
        super().__init__()
        self.channels = Channels()
        self.owners: Dict[str, weakref.ref] = {}
        self._aggregators: Dict[Channel, MessageCodec] = {}  # that run in this process
        self.when_declared: Callable[[Set[str]], None] = lambda names: None
        self._streams = StreamStarts(self.bytes_of_root)
        self._step = 0  # the number of the last exchange
        self._gpus = GpuShares(self._can_run_on_gpu)

    # A backend implements these

    def _open(self, channels: Sequence[Channel]) -> None:
        """Prepare new channels for messages."""
        raise NotImplementedError

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        """Prepare these channels for rows."""

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        """Sum a job's gradients over all workers, with the highest priority for the first channel.

        `Channel.encode` makes a channel's message, and `Channel.deliver` takes the answer.
        """
        raise NotImplementedError

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> Tuple[RowSparseNDArray, Optional[NDArray]]:
        """Sum `channel.sent` over all workers; `SparseChannel.encode` has already written it.

        Returns
        -------
        The rows of the sum, and the row lists of all workers, one below the other, for
        `SparseChannel.deliver`. The lists are None if every row of the sum is in one of them.
        """
        raise NotImplementedError

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        """Whether the GPU that holds a channel's gradients can compress them."""
        return channel.runs_on_gpu

    def _keep_earlier(self, channels: Sequence[Channel]) -> None:
        """Let `_take_back` undo the exchanges of these channels from now on."""
        for channel in channels:
            for codec in self._codecs(channel):
                codec.keep_earlier()

    def _take_back(self, channels: Sequence[Channel]) -> None:
        """Undo the last exchange of these channels."""
        for channel in channels:
            for codec in self._codecs(channel):
                codec.take_back()

    def _codecs(self, channel: Channel) -> List[AnyCodec]:
        """The codecs of this process for a channel."""
        aggregator = self._aggregators.get(channel)
        return [channel.codec] if aggregator is None else [channel.codec, aggregator]

    def _forget(self, channel: AnyChannel) -> None:
        """Free the memory of a channel that is no longer used."""
        self._aggregators.pop(channel, None)

    def place(self, chunk: Chunk) -> Tuple[int, int]:
        """This worker's rank among the workers that exchange a chunk, and how many they are."""
        return self.rank, self.num_workers

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> Tuple[float, float]:
        """Bytes that this worker pushes and pulls in a channel, on average over the steps so far.

        `done` is the reading of the channel's meter.
        """
        if not done["calls"]:
            return channel.message_bytes, channel.message_bytes
        return done["sent_bytes"] / done["calls"], done["received_bytes"] / done["calls"]

    # Set-up

    def declare(
        self,
        tensors: Iterable[Tensor],
        minimum: Optional[int] = None,
        about: Facts = (),
        bundled: bool = True,
        call: str = "step",
    ) -> None:
        """Prepare to exchange these tensors. Tensors of one call may share messages.

        Parameters
        ----------
        tensors : iterable of Tensor
        minimum : int, optional
            Smaller tensors, in bytes, are not compressed; by default BYTEPS_MIN_COMPRESS_BYTES.
        about : Facts, optional
            More facts that must be the same on all workers.
        bundled : bool
            Whether compressed tensors may share messages.
        call : str
            As in `agree`.

        Raises
        ------
        ValueError
            A tensor of that name is already declared.
        RuntimeError
            The workers declare different tensors.
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
        owners = self.num_workers if self.spreads_aggregators else 1
        channels = [
            Channel(message, declared_tensors, [self._start(c, self.place(c)[0]) for c in message])
            for message in in_messages(chunks, owners, bundled)
        ]
        in_rows = [SparseChannel(tensor) for tensor in sparse]
        self._open(channels)
        self._open_rows(in_rows)
        self.channels.add([*channels, *in_rows])
        self.when_declared({tensor.name for tensor in tensors})

    def declared(self, name: str) -> bool:
        """Whether a tensor of that name is declared."""
        return name in self.channels.tensors

    def withdraw(self, names: Collection[str]) -> List[Tensor]:
        """Remove these tensors, and return them; all workers make the same call.

        They must not share a message with any other tensor. The call waits for all exchanges.
        """
        mx.nd.waitall()
        for channel in self.channels.hide(names):
            self._forget(channel)
        self._gpus.forget()
        declared_tensors = self.channels.tensors
        return [declared_tensors.pop(name) for name in list(declared_tensors) if name in names]

    # Exchanges

    def start(self, job: Job, priority: int = 0) -> None:
        """Sum a job's gradients over contexts and workers.

        `priority` is that of the first message. Later messages have lower priorities.
        """
        self._step += 1
        job.step = self._step
        channels = self.channels.of(job.gradients)
        dense = [channel for channel in channels if isinstance(channel, Channel)]
        for channel, gpu in zip(dense, self._gpus.of(dense, job.gradients)):
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
        """Replace each array by `scale` times its sum over all workers.

        Parameters
        ----------
        arrays : mapping
            Arrays by the name of a declared tensor.
        scale : float
        priority : int
            As in `start`.
        """
        gradients = {
            name: self.channels.gradient(name, [array], [array]) for name, array in arrays.items()
        }
        self.start(Job(gradients, scale), priority)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context manager in which exchanges do not count as steps."""
        step = self._step
        try:
            yield
        finally:
            self._step = step

    # Exchanges that are taken back

    def keep_earlier(self, names: Collection[str]) -> None:
        """Let `take_back` undo exchanges of these tensors from now on. All workers call it.

        Codecs then keep a second copy of residuals and momentum.
        """
        new = [c for c in self.channels.of(names) if c.codec is not None and not c.undoable]
        self._keep_earlier(new)
        for channel in new:
            channel.undoable = True

    def take_back(self, names: Collection[str]) -> None:
        """Return residuals, momentum and random streams to the state before the last exchange.

        `names` are the tensors of that exchange. All workers call it. The averages in the gradients
        stay as they are.
        """
        self._take_back([c for c in self.channels.of(names) if c.codec is not None])

    # Aggregators and their states in checkpoints

    def _aggregator(self, channel: Channel) -> MessageCodec:
        """A codec that aggregates a channel's messages."""
        parts = [Part(chunk.size, self._start(chunk, node=None)) for chunk in channel.chunks]
        return MessageCodec(channel.params.aggregators, channel.dtype, parts)

    def keeps_aggregator(self, channel: Channel) -> bool:
        """Whether this worker's checkpoint has the state of a channel's aggregator."""
        return channel in self._aggregators

    def aggregator_states(self, channels: Sequence[Channel]) -> Iterator[States]:
        """The states of these channels' aggregators, for this worker's checkpoint."""
        return (self._aggregators[channel].state() for channel in channels)

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Place, np.ndarray]
    ) -> Mapping[Place, np.ndarray]:
        """Collect the arrays of all workers that `load_aggregators` needs; all workers call it.

        Parameters
        ----------
        channels : sequence of Channel
        arrays : mapping
            The aggregators' arrays in this worker's checkpoint.
        """
        return arrays

    def load_aggregators(
        self, channels: Sequence[Channel], states_of: Callable[[Channel], States]
    ) -> None:
        """Restore the states of these channels' aggregators; all workers call it.

        Servers take the states from rank 0.
        """
        for channel in channels:
            if channel in self._aggregators:
                self._aggregators[channel].load_state(states_of(channel))

    # Random streams

    def first_stream(self, chunk: Chunk, node: str) -> np.ndarray:
        """The first state of a chunk's random stream on a "worker" or "aggregator"."""
        number = self.place(chunk)[0] if node == "worker" else None
        return np.array(self._start(chunk, number), np.uint64)

    def _start(self, chunk: Chunk, node: Optional[int]) -> Optional[stream.State]:
        """The first state of a node's random stream for a chunk; None if its compressor needs none.

        `node` is a worker's number, or None for the aggregator.
        """
        if chunk.params is None:
            return None
        (piece,) = chunk.slices
        index = self.channels.tensors[piece.tensor].index
        return self._streams.start(chunk, node, index, piece.begin)

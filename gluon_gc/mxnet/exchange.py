"""The base of all backends: compress, hand over to the engine, decompress into the gradients."""

from __future__ import annotations

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

import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .. import env, plan
from ..agreement import Facts
from ..checkpoint import Place
from ..compression import stream
from ..plan import Chunk, Tensor
from ..random_streams import StreamStarts
from .channel import Channel
from .channels import AnyChannel, Channels
from .codec import MessageCodec, Part
from .gpus import GpuShares
from .gradient import Gradient
from .job import Job
from .messages import in_messages
from .sparse import SparseChannel
from .worker_group import WorkerGroup

States = List[Dict[str, np.ndarray]]
"""The state of a codec, chunk by chunk."""


class Exchange(WorkerGroup):
    """Sums gradients over all workers, compressed; the base of the backends.

    A backend supplies `_open`, `_exchange`, `_exchange_rows` and `_broadcast`. All calls are
    collective: every worker makes them for the same tensors in the same order. `start` returns at
    once; the result is there when the arrays are next read.

    Attributes
    ----------
    channels : Channels
        The tensors that were declared, and the channels in which they travel.
    when_declared : callable
        Is told the names of tensors once they can be exchanged.
    """

    spreads_aggregators = False  # over all workers, whose checkpoints have a part each

    def __init__(self) -> None:
        super().__init__()
        self.channels = Channels()
        self._aggregators: Dict[Channel, MessageCodec] = {}  # those that run in this process
        self.when_declared: Callable[[Set[str]], None] = lambda names: None
        self._streams = StreamStarts(self.bytes_of_root)
        self._step = 0  # the number of the last exchange
        self._gpus = GpuShares(self._can_run_on_gpu)

    # A backend supplies these

    def _open(self, channels: Sequence[Channel]) -> None:
        """Prepare these channels for messages."""
        raise NotImplementedError

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        """Prepare these channels for rows."""

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        """Sum a job's gradients over all workers, with the highest priority for the first channel.

        `Channel.encode` makes the message of a channel, and `Channel.deliver` takes the answer.
        """
        raise NotImplementedError

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> Tuple[RowSparseNDArray, Optional[NDArray]]:
        """The sum of `channel.sent` over all workers, and the rows in which it is.

        `channel.sent` is made of the gradient already. The rows are all workers' lists, one below
        the other, or None where the answer has no other rows.
        """
        raise NotImplementedError

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        """Whether the GPU that has a channel's gradients can compress them."""
        return channel.runs_on_gpu

    def _forget(self, channel: AnyChannel) -> None:
        """Free the memory of a channel that will not be used again."""
        self._aggregators.pop(channel, None)

    def place(self, chunk: Chunk) -> Tuple[int, int]:
        """This worker's number among the workers that exchange a chunk, and how many they are."""
        return self.rank, self.num_workers

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> Tuple[float, float]:
        """Bytes that this worker pushes and pulls in a channel in a step, so far on average.

        `done` is its meter.
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
        """Prepare exchanges of these tensors; those declared together may travel fused.

        Parameters
        ----------
        tensors : iterable of Tensor
        minimum : int, optional
            Smaller tensors, in bytes, are not compressed; by default BYTEPS_MIN_COMPRESS_BYTES.
        about : Facts, optional
        call : str
            As in `agree`.
        bundled : bool
            Whether compressed tensors may share messages.

        Raises
        ------
        ValueError
            A tensor of that name exists already.
        RuntimeError
            Workers declare other tensors.
        """
        tensors = list(tensors)
        self.channels.require_new(tensors)
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES") if minimum is None else minimum
        sparse = [t for t in tensors if t.rows and not plan.travels_compressed(t, minimum)]
        others = [tensor for tensor in tensors if tensor not in sparse]
        chunks = plan.cut(others, env.get("BYTEPS_PARTITION_BYTES"), minimum)
        self.agree(call, [*about, *plan.facts(tensors)])
        self._streams.draw(chunks)
        known = self.channels.tensors
        known.update((tensor.name, tensor) for tensor in tensors)
        owners = self.num_workers if self.spreads_aggregators else 1
        channels = [
            Channel(message, known, [self._start(c, self.place(c)[0]) for c in message])
            for message in in_messages(chunks, owners, bundled)
        ]
        in_rows = [SparseChannel(tensor) for tensor in sparse]
        self._open(channels)
        self._open_rows(in_rows)
        self.channels.add([*channels, *in_rows])
        self.when_declared({tensor.name for tensor in tensors})

    def declared(self, name: str) -> bool:
        """Whether a tensor of that name can be exchanged."""
        return name in self.channels.tensors

    def withdraw(self, names: Collection[str]) -> List[Tensor]:
        """Forget these tensors, and return them; all workers make the same call.

        No other tensor may share a message with them.
        """
        for channel in self.channels.hide(names):
            self._forget(channel)
        known = self.channels.tensors
        return [known.pop(name) for name in list(known) if name in names]

    # Exchanges

    def start(self, job: Job, priority: int = 0) -> None:
        """Sum a job's gradients over contexts and workers.

        `priority` is the first message's; later messages have lower ones.
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
            By the name of a tensor that was declared.
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
        """Within, exchanges do not count as steps."""
        step = self._step
        try:
            yield
        finally:
            self._step = step

    # Aggregators, and their states in checkpoints

    def _aggregator(self, channel: Channel) -> MessageCodec:
        """The codec that aggregates a channel's messages."""
        parts = [Part(chunk.size, self._start(chunk, node=None)) for chunk in channel.chunks]
        return MessageCodec(channel.params.aggregators, channel.dtype, parts)

    def keeps_aggregator(self, channel: Channel) -> bool:
        """Whether this worker's checkpoint has the state of a channel's aggregator."""
        return channel in self._aggregators

    def aggregator_states(self, channels: Sequence[Channel]) -> Iterator[States]:
        """The state of the aggregator of each of these channels, which this worker keeps."""
        return (self._aggregators[channel].state() for channel in channels)

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Place, np.ndarray]
    ) -> Mapping[Place, np.ndarray]:
        """The arrays that `load_aggregators` needs, of all workers' arrays; all of them call it."""
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

    # Random streams

    def first_stream(self, chunk: Chunk, node: str) -> np.ndarray:
        """The state in which the random stream of a chunk begins, on a "worker" or "aggregator"."""
        number = self.place(chunk)[0] if node == "worker" else None
        return np.array(self._start(chunk, number), np.uint64)

    def _start(self, chunk: Chunk, node: Optional[int]) -> Optional[stream.State]:
        """Where a node's stream for a chunk starts, if its compressor draws.

        `node` is a worker's number; None: the aggregator.
        """
        if chunk.params is None:
            return None
        (piece,) = chunk.slices
        index = self.channels.tensors[piece.tensor].index
        return self._streams.start(chunk, node, index, piece.begin)

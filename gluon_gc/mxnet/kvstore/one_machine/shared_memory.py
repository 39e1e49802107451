"""Sums of what the workers of a machine have, in memory that they share.

Each message has an owner among them, who sums what all have, and sends it compressed. What comes
back is there for all to read.
"""

from __future__ import annotations

import itertools
from typing import Callable, List, Mapping, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from .... import plan
from ....launch.machine import Machine
from ... import operators
from ...channel import Channel
from ...codec import MessageCodec
from ...eventcounts import Eventcount, Watcher
from ...gradient import Gradients
from ...job import Job
from ...lent import lent

_ALIGNMENT = 64  # bytes: what different processes write is in different lines of the cache


class SharedMessage:
    """A message that the workers of a machine make together.

    Residuals and momentum are the machine's, and every worker sees them. Everything is queued on
    MXNet's engine, and returns at once.

    Parameters
    ----------
    channel : Channel
    codecs : sequence of MessageCodec
        All codecs that the owner uses.
    owner, rank : int
        Places on the machine: the owner's, and this worker's.
    count : int
        Of payloads in an answer.
    slots : ndarray
        The workers' values, uint8, shape (workers, bytes).
    answer : ndarray
        What comes back, uint8: payloads side by side, or a sum.
    arrived, answered : Eventcount
        Which all workers, or the owner, advance once a step.

    Attributes
    ----------
    owned : bool
        Whether this worker is the owner.
    """

    def __init__(
        self,
        channel: Channel,
        codecs: Sequence[MessageCodec],
        owner: int,
        rank: int,
        count: int,
        slots: np.ndarray,
        answer: np.ndarray,
        arrived: Eventcount,
        answered: Eventcount,
    ) -> None:
        self._channel, self._codecs = channel, codecs
        self.owner, self.owned, self._count = owner, owner == rank, count
        self._arrived, self._answered = arrived, answered
        self._slots = lent(slots)
        self._own = lent(slots[rank].view(channel.dtype))
        self._answer = lent(answer if channel.framed else answer.view(channel.dtype))

    def contribute(self, job: Job) -> None:
        """Lay ready what this worker sends."""
        self._channel.copy(job, self._own, metered=not self.owned)
        if not self.owned:
            for codec in self._codecs:
                codec.move_on()
        self._arrived.advance(read=[self._own], written=[self._answer])

    def total(self) -> NDArray:
        """The sum of what all workers have, in the order of their ranks; for the owner."""
        self._arrived.wait([self._slots])
        return operators.sum_rows(self._slots, self._channel.dtype)

    def answer(self, copy: Callable[[NDArray], None]) -> None:
        """Lay ready what has come back, which is copied to where it is told; for the owner."""
        copy(self._answer)
        self._answered.advance(read=[self._answer])

    def deliver(self, gradients: Gradients, also: Sequence[NDArray] = ()) -> None:
        """Write the answer to the gradients; what is `also` used in a step waits for it too."""
        kept = [array for codec in self._codecs for array in codec.memory.arrays]
        self._answered.wait([self._answer, self._own, *kept, *also])
        self._channel.deliver([self._answer], gradients, self._count)


class SharedMemory:
    """The memory in which the workers of a machine make messages together.

    Parameters
    ----------
    machine : Machine
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        bells = machine.share(4 * machine.size).view(np.uint32)
        self._watcher = Watcher(bells, machine.rank)

    def open(
        self,
        channels: Sequence[Channel],
        answers: Sequence[int],
        aggregators: Mapping[Channel, MessageCodec],
    ) -> List[SharedMessage]:
        """Make room for messages; all workers make the same call.

        Parameters
        ----------
        channels : sequence of Channel
        answers : sequence of int
            The number of payloads in the answer to each message.
        aggregators : mapping
            The aggregators that run on this machine.
        """
        workers, rank = self._machine.size, self._machine.rank
        codecs = [
            [codec for codec in (channel.codec, aggregators.get(channel)) if codec is not None]
            for channel in channels
        ]
        owners = plan.spread([channel.message_bytes for channel in channels], workers)
        sizes: List[int] = []
        for channel, count, own in zip(channels, answers, codecs):
            values = channel.size * np.dtype(channel.dtype).itemsize
            payloads = channel.codec.payload_bytes if channel.framed else channel.message_bytes
            sizes += [workers * values, count * payloads, 4, 4]
            sizes += [codec.memory.num_bytes for codec in own]
        padded = [size + -size % _ALIGNMENT for size in sizes]
        blocks = np.split(self._machine.share(sum(padded)), np.cumsum(padded)[:-1])
        pieces = (block[:size] for block, size in zip(blocks, sizes))
        made = []
        for channel, count, owner, own in zip(channels, answers, owners, codecs):
            slots, answer, arrived, answered = itertools.islice(pieces, 4)
            for codec in own:
                codec.memory.use(next(pieces))
            slots = slots.reshape(workers, -1)
            counts = (
                self._count(arrived, workers, slice(owner, owner + 1)),
                self._count(answered, 1, slice(workers)),
            )
            made.append(SharedMessage(channel, own, owner, rank, count, slots, answer, *counts))
        return made

    def _count(self, memory: np.ndarray, each: int, awaited_by: slice) -> Eventcount:
        return Eventcount(self._watcher, memory.view(np.uint32), each, awaited_by)

    def close(self) -> None:
        """Leave; nothing is under way any more."""
        self._watcher.end()
        self._machine.close()

"""Sums the values of a machine's workers in shared memory.

Each message has an owner, one of the workers. A step of a message:

    each worker   slots[rank] = its values       (contribute)
    the owner     total = sum of the slots       (total), which it compresses and exchanges
    the owner     answer = the result            (answer)
    each worker   gradients = decoded answer     (deliver)
"""

from __future__ import annotations

import itertools
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from ....exchange import plan
from ....launch.machine import Machine
from ...engine import operators
from ...engine.memory import as_ndarray
from ...engine.order import Eventcount, Watcher
from ...exchange.channel import Channel
from ...exchange.coder import MessageCoder
from ...exchange.gradient import Gradients, Job

_ALIGNMENT = 64  # bytes: a cache line, so that processes do not write to the same one


class SharedMessage:
    """One message of a machine, with the values of all its workers.

    Residuals and momentum belong to the machine, and every worker can read them. All methods queue
    operations on MXNet's engine and return at once.
    """

    def __init__(
        self,
        channel: Channel,
        coders: Sequence[MessageCoder],
        owner: int,
        rank: int,
        count: int,  # of payloads in an answer
        slots: np.ndarray,  # the workers' values, uint8, shape (workers, bytes)
        answer: np.ndarray,  # payloads side by side, or a sum; uint8
        arrived: Eventcount,  # every worker advances it once in a step
        answered: Eventcount,  # the owner advances it once in a step
    ) -> None:
        self._channel, self.coders = channel, coders
        self.owner, self.owned, self._count = owner, owner == rank, count
        self._arrived, self._answered = arrived, answered
        self._slots = as_ndarray(slots)
        self._own = as_ndarray(slots[rank].view(channel.dtype))
        self._answer = as_ndarray(answer if channel.framed else answer.view(channel.dtype))

    def contribute(self, job: Job) -> None:
        self._channel.copy(job, self._own, metered=not self.owned)
        if not self.owned:
            for coder in self.coders:
                coder.move_on()
        self._arrived.advance(read=[self._own], written=[self._answer])

    def total(self) -> NDArray:
        """The sum of all workers' values, in the order of their ranks. Only the owner calls it."""
        self._arrived.wait([self._slots])
        return operators.sum_rows(self._slots, self._channel.dtype)

    def answer(self, copy: Callable[[NDArray], None]) -> None:
        """Publish the result, which `copy` writes to its argument. Only the owner calls it."""
        copy(self._answer)
        self._answered.advance(read=[self._answer])

    def deliver(self, gradients: Gradients, also: Sequence[NDArray] = ()) -> None:
        """Write the answer to the gradients. Later operations on `also` wait for it as well."""
        kept = [array for coder in self.coders for array in coder.memory.arrays]
        self._answered.wait([self._answer, self._own, *kept, *also])
        self._channel.deliver([self._answer], gradients, self._count)


class SharedMemory:
    """The memory that the workers of a machine share for their messages."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        bells = machine.share(4 * machine.size).view(np.uint32)
        self._watcher = Watcher(bells, machine.rank)

    def open(
        self,
        channels: Sequence[Channel],
        answers: Sequence[int],
        aggregators: Mapping[Channel, MessageCoder],
    ) -> list[SharedMessage]:
        """Allocate a message for each channel; `answers` are the numbers of payloads in answers."""
        workers, rank = self._machine.size, self._machine.rank
        coders = [
            [coder for coder in (channel.coder, aggregators.get(channel)) if coder is not None]
            for channel in channels
        ]
        owners = plan.assign([channel.message_bytes for channel in channels], workers)
        sizes: list[int] = []
        for channel, count, own in zip(channels, answers, coders):
            values = channel.size * np.dtype(channel.dtype).itemsize
            payloads = channel.coder.payload_bytes if channel.framed else channel.message_bytes
            sizes += [workers * values, count * payloads, 4, 4]
            sizes += [coder.memory.num_bytes for coder in own]
        pieces = self._pieces(sizes)
        messages: list[SharedMessage] = []
        for channel, count, owner, own in zip(channels, answers, owners, coders):
            slots, answer, arrived, answered = itertools.islice(pieces, 4)
            for coder in own:
                coder.memory.use(next(pieces))
            slots = slots.reshape(workers, -1)
            counts = (
                self._count(arrived, workers, slice(owner, owner + 1)),
                self._count(answered, 1, slice(workers)),
            )
            message = SharedMessage(channel, own, owner, rank, count, slots, answer, *counts)
            messages.append(message)
        return messages

    def keep_earlier(self, messages: Sequence[SharedMessage]) -> None:
        """Let these messages' coders keep the state before each step; all local workers call it."""
        memories = [coder.memory for message in messages for coder in message.coders]
        for memory, piece in zip(memories, self._pieces([m.num_bytes for m in memories])):
            memory.keep_earlier(piece)

    def _pieces(self, sizes: Sequence[int]) -> Iterator[np.ndarray]:
        """New shared memory of these sizes in bytes. All workers make the same call."""
        padded = [size + -size % _ALIGNMENT for size in sizes]
        memory = self._machine.share(sum(padded)) if any(padded) else np.empty(0, np.uint8)
        blocks = np.split(memory, np.cumsum(padded)[:-1])
        return (block[:size] for block, size in zip(blocks, sizes))

    def _count(self, memory: np.ndarray, each: int, awaited_by: slice) -> Eventcount:
        return Eventcount(self._watcher, memory.view(np.uint32), each, awaited_by)

    def close(self) -> None:
        self._watcher.end()
        self._machine.close()

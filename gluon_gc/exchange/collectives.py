"""The two collectives of an exchange, on bytes: `ToOwners` and `ToAll`.

Each chunk has a room: the buffer for its bytes in an outgoing message. `start` sends the rooms and
returns at once. After `wait`, `rows` holds the received bytes, until `expect` is called. If
payloads vary in length, only the bytes in use are sent; such a payload begins with its length.
"""

from __future__ import annotations

import itertools
from typing import Callable, Collection, Iterable, NamedTuple, Sequence

import numpy as np

from .transport import Members

_ALIGNMENT = 8  # bytes; rooms may hold float64 values

Memory = Callable[[int], np.ndarray]
"""Allocates zeros: uint8, shape (bytes,)."""


class WireSize(NamedTuple):
    """The size of one chunk, or of a header, in a message."""

    most: int  # the bytes of its room
    used: Callable[[np.ndarray], int] | None = None
    """Returns the number of bytes in use, given an array that begins with them. None: all."""


WireSizes = Sequence[WireSize]


def offsets(sizes: Iterable[int]) -> list[int]:
    """Return the offsets of consecutive rooms of these bytes, and the end of the last one."""
    return [0, *itertools.accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]


def other_workers(rank: int, workers: int) -> list[int]:
    """Return the other workers, the next rank first, so that all receive at the same time."""
    return [(rank + i) % workers for i in range(1, workers)]


class _Message:
    """The chunks that travel from one worker to another: their rooms, and the bytes that travel.

    `rooms_memory`: the memory of the rooms. None: it is allocated.
    """

    def __init__(
        self, sizes: WireSizes, memory: Memory, rooms_memory: np.ndarray | None = None
    ) -> None:
        self._sizes, self._most = sizes, [size.most for size in sizes]
        begins = offsets(self._most)
        rooms = memory(begins[-1]) if rooms_memory is None else rooms_memory
        self._varies = any(size.used is not None for size in sizes)
        self.rooms = [rooms[begin : begin + size.most] for begin, size in zip(begins, sizes)]
        self.wire = memory(begins[-1]) if self._varies else rooms  # a received one may be shorter

    def used(self) -> list[int]:
        """Return the number of bytes in use of each room."""
        if not self._varies:
            return self._most
        return [
            size.most if size.used is None else size.used(room)
            for size, room in zip(self._sizes, self.rooms)
        ]

    def packed(self, used: Sequence[int]) -> np.ndarray:
        """Return the bytes to send: the first `used` bytes of each room."""
        if not self._varies:
            return self.wire
        end = 0
        for room, count in zip(self.rooms, used):
            self.wire[end : end + count] = room[:count]
            end += count
        return self.wire[:end]

    def unpack(self) -> int:
        """Copy the received bytes to the rooms, and return their number."""
        if not self._varies:
            return sum(self._most)
        end = 0
        for size, room in zip(self._sizes, self.rooms):
            received = self.wire[end : end + size.most]
            count = size.most if size.used is None else size.used(received)
            room[:count] = received[:count]
            end += count
        return end


class ToOwners:
    """Each worker sends different bytes to each owner.

    `sizes` has the sizes of each owner's chunks. The workers in `no_owners` own nothing. Each of
    them receives a header from the worker before it, so that workers that wait for each other in
    different steps notice it.

    Attributes
    ----------
    order : list of int
        The owners in the order in which `start` sends to them. This worker is the last one.
    senders : list of int
        The workers whose bytes this worker has in the end, with itself.
    rooms : list of array of uint8
        The rooms of all chunks, in the order of their owners.
    rows : list of array of uint8, shape (senders, bytes)
        For each chunk that this worker owns, the bytes of all senders.
    """

    def __init__(
        self,
        members: Members,
        tag: int,
        sizes: Sequence[WireSizes],
        memory: Memory,
        no_owners: Collection[int] = (),
    ) -> None:
        rank, workers = members.rank, len(sizes)
        mine, others = sizes[rank], other_workers(rank, workers)
        before, after = (rank - 1) % workers, (rank + 1) % workers
        self.senders = sorted({rank, before}) if rank in no_owners else list(range(workers))
        self._receivers = [w for w in others if w not in no_owners or w == after]
        self.order = [*others, rank]
        begins = offsets(size.most for size in mine)
        received = memory(len(self.senders) * begins[-1]).reshape(len(self.senders), begins[-1])
        self.rows = [received[:, begin : begin + size.most] for begin, size in zip(begins, mine)]
        row_of = dict(zip(self.senders, received))
        self._incoming = {w: _Message(mine, memory, row_of[w]) for w in others if w in row_of}
        self._outgoing = [
            _Message(owner_sizes, memory, row_of[rank] if owner == rank else None)
            for owner, owner_sizes in enumerate(sizes)
        ]
        self.rooms = [room for message in self._outgoing for room in message.rooms]
        self._messages = members.messages(0, tag, _wires(self._incoming))

    def start(self, written: Iterable[None] = itertools.repeat(None)) -> int:
        """Start to send the rooms, and return the number of bytes in use.

        `written` yields when the rooms of the next owner in `order` are written.
        """
        total = 0
        for owner, _ in zip(self.order, written):
            message = self._outgoing[owner]
            used = message.used()
            if owner in self._receivers:
                self._messages.send({owner: message.packed(used)})
            total += sum(used)
        return total

    def send_instead(self, header: np.ndarray) -> None:
        """Send this header, uint8, instead of the next bytes."""
        self._messages.send(dict.fromkeys(self._receivers, header))

    def wait(self) -> int:
        """Wait until `rows` has all bytes, and return the number of bytes from other workers."""
        self._messages.wait()
        return sum(message.unpack() for message in self._incoming.values())

    def expect(self) -> None:
        """Allow the next bytes to overwrite `rows`."""
        self._messages.expect()


class ToAll:
    """Each worker sends the same bytes to all workers.

    `gathered` has the sizes of the chunks that every worker sends, `sizes` those of each owner's
    chunks. Nothing else of phase 1 may use the tag.

    Attributes
    ----------
    rooms : list of array of uint8
        The rooms of this worker: first those of the gathered chunks, then those of the chunks that
        it owns.
    rows : list of array of uint8
        The received bytes of each chunk: first the gathered chunks, shape (workers, bytes), then
        the other chunks in the order of their owners, shape (1, bytes).
    """

    def __init__(
        self,
        members: Members,
        tag: int,
        gathered: WireSizes,
        sizes: Sequence[WireSizes],
        memory: Memory,
    ) -> None:
        rank, workers = members.rank, len(sizes)
        self._all = [_Message([*gathered, *owner_sizes], memory) for owner_sizes in sizes]
        self._outgoing = self._all[rank]
        self._incoming = {worker: self._all[worker] for worker in other_workers(rank, workers)}
        self._gathered = [np.zeros((workers, size.most), np.uint8) for size in gathered]
        self.rooms = self._outgoing.rooms
        owned = [room for message in self._all for room in message.rooms[len(gathered) :]]
        self.rows = [*self._gathered, *(room[None] for room in owned)]
        self._messages = members.messages(1, tag, _wires(self._incoming))

    def start(self) -> list[int]:
        """Start to send the rooms, and return the number of bytes in use of each."""
        used = self._outgoing.used()
        self._messages.send(dict.fromkeys(self._incoming, self._outgoing.packed(used)))
        return used

    def send_instead(self, header: np.ndarray) -> None:
        """Send this header, uint8, instead of the next bytes."""
        if self.rooms:
            self._messages.send(dict.fromkeys(self._incoming, header))

    def wait(self) -> int:
        """Wait until `rows` has all bytes, also this worker's own, and return their number."""
        self._messages.wait()
        received = [message.unpack() for message in self._incoming.values()]
        for chunk, rows in enumerate(self._gathered):
            for row, message in zip(rows, self._all):
                row[:] = message.rooms[chunk]
        return sum(received) + sum(self._outgoing.used())

    def expect(self) -> None:
        """Allow the next bytes to overwrite `rows`."""
        self._messages.expect()


def _wires(messages: dict[int, _Message]) -> dict[int, np.ndarray]:
    return {worker: message.wire for worker, message in messages.items()}


class Collectives(NamedTuple):
    """How the chunks of a transfer travel: in host memory, or between GPUs with headers beside.

    The functions take the arguments of `ToOwners` and `ToAll` but `memory`. If the first size of an
    owner's chunks is its header's, rooms and rows may be in GPU memory except the header's.
    """

    to_owners: Callable[..., ToOwners]
    to_all: Callable[..., ToAll]

"""The two collectives of an exchange, on bytes: to owners, and to all.

Both have a room for each channel, into which the channel writes; `start` sends what was written and
returns at once; after `wait`, rows have what came, until `expect`. Where lengths vary, only bytes
in use travel: payloads say themselves how many these are.
"""

from __future__ import annotations

import itertools
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist

from . import gpu, groups

_ALIGNMENT = 8  # of rooms, for values in them


class Part(NamedTuple):
    """What travels of one channel.

    Attributes
    ----------
    size : int
        Its bytes, at most.
    used : callable, optional
        How many bytes are in use, given an array that begins with them. None: all of them.
    """

    size: int
    used: Optional[Callable[[np.ndarray], int]] = None


Parts = Sequence[Part]


def _begins(parts: Parts) -> List[int]:
    """Where the room of each begins, one behind the other, and where the last ends."""
    aligned = (-(-part.size // _ALIGNMENT) * _ALIGNMENT for part in parts)
    return [0, *itertools.accumulate(aligned)]


def _zeros(size: int) -> np.ndarray:
    return gpu.host_memory(size, torch.uint8).numpy()


def _others(rank: int, workers: int) -> List[int]:
    """The other workers; each begins with another one, so that not all send to the same."""
    return [(rank + i) % workers for i in range(1, workers)]


class _Message:
    """The channels that travel from one worker to another.

    Parameters
    ----------
    parts : sequence of Part
    memory : array of uint8, optional
        What the rooms are in; None: some of its own.

    Attributes
    ----------
    rooms : list of array of uint8
        Of each channel.
    wire : array of uint8
        What travels; of what comes the beginning.
    """

    def __init__(self, parts: Parts, memory: Optional[np.ndarray] = None) -> None:
        begins = _begins(parts)
        memory = _zeros(begins[-1]) if memory is None else memory
        self._parts = parts
        self._varies = any(part.used is not None for part in parts)
        self.rooms = [memory[begin : begin + part.size] for begin, part in zip(begins, parts)]
        self.wire = _zeros(begins[-1]) if self._varies else memory

    def used(self) -> List[int]:
        """How many bytes of each room are in use."""
        return [
            part.size if part.used is None else part.used(room)
            for part, room in zip(self._parts, self.rooms)
        ]

    def packed(self, used: Sequence[int]) -> np.ndarray:
        """What to send of what the rooms hold, of which so many bytes each are in use."""
        if not self._varies:
            return self.wire
        at = 0
        for room, size in zip(self.rooms, used):
            self.wire[at : at + size] = room[:size]
            at += size
        return self.wire[:at]

    def unpack(self) -> int:
        """Write to the rooms what came, and say how many bytes are in use."""
        if not self._varies:
            return sum(part.size for part in self._parts)
        at = 0
        for part, room in zip(self._parts, self.rooms):
            came = self.wire[at : at + part.size]
            size = part.size if part.used is None else part.used(came)
            room[:size] = came[:size]
            at += size
        return at


class ToOwners:
    """Each worker sends bytes to each owner.

    Parameters
    ----------
    group : ProcessGroup
        All members call the same in the same order.
    tag : int
        The same on all members, and of nothing else in the group.
    parts : sequence of sequence of Part
        Of each owner's channels.

    Attributes
    ----------
    rooms : list of array of uint8
        Of all channels, the first owner's first.
    rows : list of array of uint8, shape (workers, bytes)
        For each channel of this owner what all workers sent.
    """

    def __init__(self, group: dist.ProcessGroup, tag: int, parts: Sequence[Parts]) -> None:
        rank, workers = dist.get_rank(group), len(parts)
        mine, self._others = parts[rank], _others(rank, workers)
        begins = _begins(mine)
        memory = _zeros(workers * begins[-1]).reshape(workers, begins[-1])
        self.rows = [memory[:, begin : begin + part.size] for begin, part in zip(begins, mine)]
        self._coming = {worker: _Message(mine, memory[worker]) for worker in self._others}
        self._going = [
            _Message(of_owner, memory[rank] if owner == rank else None)
            for owner, of_owner in enumerate(parts)
        ]
        self.rooms = [room for message in self._going for room in message.rooms]
        self._messages = groups.TRANSPORT.messages(group, tag, _wires(self._coming))

    def start(self) -> int:
        """Send what the rooms hold, and say how many bytes of them are in use."""
        used = [message.used() for message in self._going]
        self._messages.send(
            {owner: self._going[owner].packed(used[owner]) for owner in self._others}
        )
        return sum(map(sum, used))

    def wait(self) -> None:
        """Return when the rows have what was sent."""
        self._messages.wait()
        for message in self._coming.values():
            message.unpack()

    def expect(self) -> None:
        """Let what comes next overwrite the rows."""
        self._messages.expect()


class ToAll:
    """Each worker sends the same bytes to all.

    Parameters
    ----------
    group : ProcessGroup
        All members call the same in the same order.
    tag : int
        The same on all members, and of nothing else in the group.
    gathered : sequence of Part
        Of channels that every worker sends.
    parts : sequence of sequence of Part
        Of each owner's channels.

    Attributes
    ----------
    rooms : list of array of uint8
        Of what this worker sends: gathered channels, and then those that it owns.
    rows : list of array of uint8
        What came for each channel: of shape (workers, bytes) for those that are gathered, which are
        first, and (1, bytes) for the others, those of the first owner first.
    """

    def __init__(
        self, group: dist.ProcessGroup, tag: int, gathered: Parts, parts: Sequence[Parts]
    ) -> None:
        rank, workers = dist.get_rank(group), len(parts)
        self._all = [_Message([*gathered, *of_owner]) for of_owner in parts]
        self._going = self._all[rank]
        self._coming = {worker: self._all[worker] for worker in _others(rank, workers)}
        self._gathered = [np.zeros((workers, part.size), np.uint8) for part in gathered]
        self.rooms = self._going.rooms
        owned = [room for message in self._all for room in message.rooms[len(gathered) :]]
        self.rows = [*self._gathered, *(room[None] for room in owned)]
        self._messages = groups.TRANSPORT.messages(group, tag, _wires(self._coming))

    def start(self) -> List[int]:
        """Send what the rooms hold, and say how many bytes of each are in use."""
        used = self._going.used()
        self._messages.send(dict.fromkeys(self._coming, self._going.packed(used)))
        return used

    def wait(self) -> int:
        """Return when the rows have what came, and how many bytes that was, with its own."""
        self._messages.wait()
        came = [message.unpack() for message in self._coming.values()]
        for channel, rows in enumerate(self._gathered):
            for row, message in zip(rows, self._all):
                row[:] = message.rooms[channel]
        return sum(came) + sum(self._going.used())

    def expect(self) -> None:
        """Let what comes next overwrite the rows."""
        self._messages.expect()


def _wires(messages: Dict[int, _Message]) -> Dict[int, np.ndarray]:
    return {worker: message.wire for worker, message in messages.items()}

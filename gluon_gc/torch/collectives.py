"""The two collectives of an exchange, on bytes: to owners, and to all.

Both have a room for each channel, into which the channel writes; `start` sends what was written and
returns at once; after `wait`, rows have what came. Where lengths vary, they are told first, so that
only bytes in use travel.
"""

from __future__ import annotations

import itertools
from typing import List, Sequence

import numpy as np
import torch
import torch.distributed as dist

_ALIGNMENT = 8  # of rooms, for values in them
# PyTorch 2.13 has another name for it, and warns of the older one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _bytes(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _begins(sizes: Sequence[int]) -> List[int]:
    """Where each of these begins, one behind the other, and where the last ends."""
    return [0, *itertools.accumulate(map(_aligned, sizes))]


def _parts(row: np.ndarray, sizes: Sequence[int]) -> List[np.ndarray]:
    """Of the last axis the part of each of these sizes."""
    return [row[..., begin : begin + size] for begin, size in zip(_begins(sizes), sizes)]


def _pack(rooms: Sequence[np.ndarray], used: Sequence[int], to: torch.Tensor) -> int:
    """Write what is in use of rooms side by side; how many bytes that is."""
    out, at = to.numpy(), 0
    for room, size in zip(rooms, used):
        out[at : at + size] = room[:size]
        at += size
    return at


def _unpack(row: np.ndarray, used: Sequence[int], rooms: Sequence[np.ndarray]) -> None:
    """The reverse."""
    at = 0
    for room, size in zip(rooms, used):
        room[:size] = row[at : at + size]
        at += size


class ToOwners:
    """Each worker sends bytes to each owner.

    Parameters
    ----------
    group : ProcessGroup
        All members call the same in the same order.
    sizes : sequence of sequence of int
        For each owner the bytes of its channels, at most.
    varies : bool

    Attributes
    ----------
    rooms : list of array of uint8
        Of all channels, the first owner's first.
    rows : list of array of uint8, shape (workers, bytes)
        For each channel of this owner what all workers sent.
    """

    def __init__(
        self, group: dist.ProcessGroup, sizes: Sequence[Sequence[int]], varies: bool
    ) -> None:
        self._group, self._varies = group, varies
        self._sizes = sizes
        self._mine = sizes[dist.get_rank(group)]
        self._splits = [_begins(of_owner)[-1] for of_owner in sizes]
        self._sent = _bytes(sum(self._splits))
        ends = list(itertools.accumulate(self._splits))[:-1]
        self.rooms = [
            room
            for part, of_owner in zip(np.split(self._sent.numpy(), ends), sizes)
            for room in _parts(part, of_owner)
        ]
        workers, most = len(sizes), _begins(self._mine)[-1]
        self._came = _bytes(workers * most)
        self.rows = _parts(self._came.numpy().reshape(workers, most), self._mine)
        if varies:
            self._packed, self._arrived = _bytes(self._sent.numel()), _bytes(self._came.numel())
            self._lengths = torch.zeros(workers, len(self._mine), dtype=torch.int64)

    def start(self, used: Sequence[int]) -> int:
        """Send what the rooms hold, of which so many bytes each are in use, and how many are."""
        if not self._varies:
            mine = [self._came.numel() // len(self._splits)] * len(self._splits)
            self._begin(self._came, self._sent, mine, self._splits)
            return sum(used)
        counts = [len(of_owner) for of_owner in self._sizes]
        all_mine = [len(self._mine)] * len(counts)
        lengths = torch.tensor(used, dtype=torch.int64)
        dist.all_to_all_single(self._lengths.view(-1), lengths, all_mine, counts, group=self._group)
        _pack(self.rooms, used, self._packed)
        splits = [int(part.sum()) for part in lengths.split(counts)]
        come = self._lengths.sum(1).tolist()
        self._begin(self._arrived[: sum(come)], self._packed[: sum(splits)], come, splits)
        return sum(splits)

    def _begin(
        self, to: torch.Tensor, of: torch.Tensor, come: List[int], splits: List[int]
    ) -> None:
        self._work = dist.all_to_all_single(to, of, come, splits, group=self._group, async_op=True)

    def wait(self) -> None:
        """Return when the rows have what was sent."""
        self._work.wait()
        if self._varies:
            at = 0
            for worker, used in enumerate(self._lengths.tolist()):
                row = self._arrived.numpy()[at : at + sum(used)]
                _unpack(row, used, [rows[worker] for rows in self.rows])
                at += sum(used)


class ToAll:
    """Each worker sends the same bytes to all.

    Over Gloo, many small alltoalls at a time leave a link idle less than allgathers do, and need no
    padding.

    Parameters
    ----------
    group : ProcessGroup
        All members call the same in the same order.
    gathered : sequence of int
        The bytes of channels that every worker sends, at most.
    sizes : sequence of sequence of int
        For each owner the bytes of its channels, at most.
    varies : bool

    Attributes
    ----------
    rooms : list of array of uint8
        Of what this worker sends: gathered channels, and then those that it owns.
    rows : list of array of uint8
        What came for each channel: of shape (workers, bytes) for those that are gathered, which are
        first, and (1, bytes) for the others, those of the first owner first.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        gathered: Sequence[int],
        sizes: Sequence[Sequence[int]],
        varies: bool,
    ) -> None:
        self._group, self._varies, self._workers = group, varies, len(sizes)
        of_workers = [[*gathered, *of_owner] for of_owner in sizes]
        self._come = [_begins(of_worker)[-1] for of_worker in of_workers]
        rank = dist.get_rank(group)
        self._sent, self._came = _bytes(self._come[rank]), _bytes(sum(self._come))
        self.rooms = _parts(self._sent.numpy(), of_workers[rank])
        ends = list(itertools.accumulate(self._come))[:-1]
        rows = np.split(self._came.numpy(), ends)
        self._by_worker = [_parts(row, sizes) for row, sizes in zip(rows, of_workers)]
        self._gathered = [np.zeros((self._workers, size), np.uint8) for size in gathered]
        self.rows = [*self._gathered]
        for of_worker in self._by_worker:
            self.rows += [row[None] for row in of_worker[len(gathered) :]]
        if varies:
            self._packed, self._arrived = _bytes(self._sent.numel()), _bytes(self._came.numel())
            channels = max(map(len, of_workers))
            self._used = torch.zeros(channels, dtype=torch.int64)
            self._lengths = torch.zeros(self._workers, channels, dtype=torch.int64)

    def start(self, used: Sequence[int]) -> None:
        """Send what the rooms hold, of which so many bytes each are in use."""
        to, of, come = self._came, self._sent, self._come
        if self._varies:
            self._used[: len(used)] = torch.tensor(used, dtype=torch.int64)
            _all_gather(self._lengths.view(-1), self._used, group=self._group)
            of = self._packed[: _pack(self.rooms, used, self._packed)]
            come = self._lengths.sum(1).tolist()
            to = self._arrived[: sum(come)]
        splits = [of.numel()] * self._workers
        self._arriving = sum(come)
        self._copies = of.repeat(self._workers)  # freed here, rather than by a thread of Gloo's
        self._work = dist.all_to_all_single(
            to, self._copies, come, splits, group=self._group, async_op=True
        )

    def wait(self) -> int:
        """Return when the rows have what came, and how many bytes that was."""
        self._work.wait()
        if self._varies:
            at = 0
            for used, rooms in zip(self._lengths.tolist(), self._by_worker):
                _unpack(self._arrived.numpy()[at : at + sum(used)], used, rooms)
                at += sum(used)
        for channel, rows in enumerate(self._gathered):
            for row, of_worker in zip(rows, self._by_worker):
                row[:] = of_worker[channel]
        return self._arriving

"""The two collectives of an exchange whose payloads are in GPU memory.

NCCL carries the payloads, and Gloo a header for each owner, which the CPU reads.
"""

from __future__ import annotations

from itertools import chain
from typing import Collection, List, NamedTuple, Sequence

import torch
import torch.distributed as dist

from .collectives import ToAll, ToOwners, WireSize, WireSizes, offsets, other_workers
from .nccl import GpuMessages


class Members(NamedTuple):
    """The workers of a collective, in a group of each engine.

    Parameters
    ----------
    gloo, nccl : ProcessGroup
    device : torch.device
        This worker's GPU.
    """

    gloo: dist.ProcessGroup
    nccl: dist.ProcessGroup
    device: torch.device


class GpuToOwners(ToOwners):
    """Each worker sends different headers and payloads to each owner.

    Parameters
    ----------
    members : Members
    tag : int
        See `ToOwners`.
    headers : sequence of sequence of WireSize
        The size of each owner's header; empty if it owns nothing.
    sizes : sequence of sequence of int
        For each owner, the bytes of its payloads.
    no_owners : collection of int
        See `ToOwners`.

    Attributes
    ----------
    rooms, rows
        Those of the headers; see `ToOwners`.
    payload_rooms : list of Tensor of uint8, shape (bytes,)
        The rooms of all payloads, in the order of their owners.
    payload_rows : list of Tensor of uint8, shape (workers, bytes)
        For each payload that this worker owns, those of all workers.
    """

    def __init__(
        self,
        members: Members,
        tag: int,
        headers: Sequence[WireSizes],
        sizes: Sequence[Sequence[int]],
        no_owners: Collection[int],
    ) -> None:
        super().__init__(members.gloo, tag, headers, no_owners)
        rank, workers = dist.get_rank(members.gloo), len(sizes)
        received = _memory(sizes[rank], workers, members.device)
        sent = [
            received[rank] if owner == rank else _memory(sizes[owner], 1, members.device)[0]
            for owner in range(workers)
        ]
        self.payload_rooms = list(chain.from_iterable(map(_rooms, sent, sizes)))
        self.payload_rows = _rooms(received, sizes[rank])
        others = other_workers(rank, workers)
        self._payloads = GpuMessages(
            members.nccl,
            members.device,
            {worker: sent[worker] for worker in others},
            {worker: received[worker] for worker in others},
        )
        self._payload_bytes = sum(map(sum, sizes))

    def start(self) -> int:
        self._payloads.start()
        return super().start() + self._payload_bytes

    def wait(self) -> None:
        super().wait()
        self._payloads.wait()


class GpuToAll(ToAll):
    """Each worker sends its header and payloads to all workers.

    Parameters
    ----------
    members, tag, headers, sizes
        See `GpuToOwners`.

    Attributes
    ----------
    rooms, rows
        Those of the headers; see `ToAll`.
    payload_rooms : list of Tensor of uint8, shape (bytes,)
        The rooms of the payloads that this worker owns.
    payload_rows : list of Tensor of uint8, shape (1, bytes)
        The received payloads, in the order of their owners.
    """

    def __init__(
        self,
        members: Members,
        tag: int,
        headers: Sequence[WireSizes],
        sizes: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(members.gloo, tag, [], headers)
        rank, workers = dist.get_rank(members.gloo), len(sizes)
        memory = [_memory(owner_sizes, 1, members.device)[0] for owner_sizes in sizes]
        self.payload_rooms = _rooms(memory[rank], sizes[rank])
        self.payload_rows = [room[None] for each in map(_rooms, memory, sizes) for room in each]
        others = other_workers(rank, workers)
        self._payloads = GpuMessages(
            members.nccl,
            members.device,
            dict.fromkeys(others, memory[rank]),
            {worker: memory[worker] for worker in others},
        )
        self._payload_bytes = sum(map(sum, sizes))

    def start(self) -> List[int]:
        self._payloads.start()
        return super().start()

    def wait(self) -> int:
        headers = super().wait()
        self._payloads.wait()
        return headers + self._payload_bytes


def _memory(sizes: Sequence[int], rows: int, device: torch.device) -> torch.Tensor:
    """Return memory for consecutive rooms of these sizes, shape (rows, bytes)."""
    end = offsets(map(WireSize, sizes))[-1]
    return torch.zeros(rows, end, dtype=torch.uint8, device=device)


def _rooms(memory: torch.Tensor, sizes: Sequence[int]) -> List[torch.Tensor]:
    """Return the parts of memory, shape (..., bytes), with these sizes."""
    begins = offsets(map(WireSize, sizes))
    return [memory[..., begin : begin + size] for begin, size in zip(begins, sizes)]

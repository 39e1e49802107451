"""NCCL: payloads that travel from GPU to GPU, without a copy in host memory.

Gloo carries a header for each owner, which the CPU reads.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Collection, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed import batch_isend_irecv

from ... import env
from ...exchange.collectives import ToAll, ToOwners, WireSizes, offsets, other_workers
from ...exchange.transport import Members, peer_errors
from . import gpu, groups

BACKEND = "nccl"


def is_chosen() -> bool:
    """Return whether NCCL carries payloads where it can."""
    return env.get("GLUON_GC_PAYLOADS") == "nccl"


def new_group(ranks: Sequence[int], everybody: bool = False) -> dist.ProcessGroup:
    """Create a group of these workers, as `groups.new_group` does.

    Raises
    ------
    ConfigurationError
        This PyTorch has no NCCL.
    """
    if not dist.is_backend_available(BACKEND):
        raise env.ConfigurationError("GLUON_GC_PAYLOADS is 'nccl', but this PyTorch has no NCCL")
    return dist.new_group(
        list(ranks), groups.timeout(), backend=BACKEND, use_local_synchronization=not everybody
    )


class GpuMessages:
    """One worker's messages to and from the other members of a group, repeated in every step.

    All members call `start` in the same order, and then `wait`. NCCL sends and receives all of a
    member's messages in one kernel, so their order does not matter. Empty tensors are not sent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        sent: Mapping[int, torch.Tensor],  # by the receiver's rank in the job
        received: Mapping[int, torch.Tensor],
    ) -> None:
        self._order = gpu.Order(device, [*sent.values(), *received.values()])
        self._operations = [
            dist.P2POp(operation, memory, other, group)
            for operation, messages in ((dist.irecv, received), (dist.isend, sent))
            for other, memory in messages.items()
            if memory.numel()
        ]
        self._under_way: list[dist.Work] = []

    def start(self) -> None:
        """Start to send and to receive. Returns at once."""
        with self._order.queue(), peer_errors():
            if self._operations:
                self._under_way = batch_isend_irecv(self._operations)

    def wait(self) -> None:
        """Let this thread's stream wait until all messages have been sent and received."""
        with self._order.queue(), peer_errors():
            for work in self._under_way:
                work.wait()


class GpuToOwners(ToOwners):
    """As `ToOwners`, but only the first room of an owner, its header, is in host memory."""

    def __init__(
        self,
        members: Members,
        tag: int,
        sizes: Sequence[WireSizes],
        no_owners: Collection[int],
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        headers, payloads = _divided(sizes)
        super().__init__(members, tag, headers, gpu.memory, no_owners)
        rank, workers = members.rank, len(sizes)
        received = _memory(payloads[rank], workers, device)
        sent = [
            received[rank] if owner == rank else _memory(payloads[owner], 1, device)[0]
            for owner in range(workers)
        ]
        self.rooms = _joined(self.rooms, headers, map(_rooms, sent, payloads))
        self.rows = [*self.rows, *_rooms(received, payloads[rank])]
        others = other_workers(rank, workers)
        self._payloads = GpuMessages(
            group,
            device,
            {members.ranks[w]: sent[w] for w in others},
            {members.ranks[w]: received[w] for w in others},
        )
        self._payload_bytes = sum(map(sum, payloads))
        self._received_bytes = sum(payloads[rank]) * len(others)

    def start(self, written: Iterable[None] = repeat(None)) -> int:
        for _ in zip(self.order, written):
            pass
        self._payloads.start()
        return super().start() + self._payload_bytes

    def wait(self) -> int:
        headers = super().wait()
        self._payloads.wait()
        return headers + self._received_bytes


class GpuToAll(ToAll):
    """As `ToAll` without gathered chunks; only an owner's first room is in host memory."""

    def __init__(
        self,
        members: Members,
        tag: int,
        gathered: WireSizes,
        sizes: Sequence[WireSizes],
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        headers, payloads = _divided(sizes)
        super().__init__(members, tag, gathered, headers, gpu.memory)
        rank, workers = members.rank, len(sizes)
        memory = [_memory(owner_payloads, 1, device)[0] for owner_payloads in payloads]
        self.rooms = [*self.rooms, *_rooms(memory[rank], payloads[rank])]
        rows = ([room[None] for room in each] for each in map(_rooms, memory, payloads))
        self.rows = _joined(self.rows, headers, rows)
        others = other_workers(rank, workers)
        self._payloads = GpuMessages(
            group,
            device,
            {members.ranks[w]: memory[rank] for w in others},
            {members.ranks[w]: memory[w] for w in others},
        )
        self._payload_bytes = sum(map(sum, payloads))

    def start(self) -> list[int]:
        self._payloads.start()
        return super().start()

    def wait(self) -> int:
        headers = super().wait()
        self._payloads.wait()
        return headers + self._payload_bytes


def _divided(sizes: Sequence[WireSizes]) -> tuple[list[WireSizes], list[list[int]]]:
    """Return each owner's header, if it has one, and the bytes of its payloads."""
    return [each[:1] for each in sizes], [[size.most for size in each[1:]] for each in sizes]


def _joined(of_headers, headers: Sequence[WireSizes], of_payloads) -> list:
    """Return each owner's header in front of its payloads."""
    heads = iter(of_headers)
    return [
        *chain.from_iterable(
            (*(next(heads) for _ in header), *payloads)
            for header, payloads in zip(headers, of_payloads)
        )
    ]


def _memory(sizes: Sequence[int], rows: int, device: torch.device) -> torch.Tensor:
    """Return memory for consecutive rooms of these sizes, shape (rows, bytes)."""
    with gpu.queue(device):
        return torch.zeros(rows, offsets(sizes)[-1], dtype=torch.uint8, device=device)


def _rooms(memory: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return the parts of memory, shape (..., bytes), with these sizes."""
    begins = offsets(sizes)
    return [memory[..., begin : begin + size] for begin, size in zip(begins, sizes)]

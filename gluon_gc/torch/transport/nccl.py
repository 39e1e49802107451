"""NCCL: payloads that travel from GPU to GPU, without a copy in host memory."""

from __future__ import annotations

from typing import List, Mapping, Sequence

import torch
import torch.distributed as dist

from .. import env
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
    member's messages in one kernel, so their order does not matter.

    Parameters
    ----------
    group : ProcessGroup
    device : torch.device
    sent, received : mapping of int to Tensor of uint8
        The memory of the messages to and from each member, by its rank in the group. Empty tensors
        are not sent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        sent: Mapping[int, torch.Tensor],
        received: Mapping[int, torch.Tensor],
    ) -> None:
        ranks, self._device = dist.get_process_group_ranks(group), device
        self._operations = [
            dist.P2POp(operation, memory, ranks[member], group)
            for operation, messages in ((dist.irecv, received), (dist.isend, sent))
            for member, memory in messages.items()
            if memory.numel()
        ]
        self._under_way: List[dist.Work] = []

    def start(self) -> None:
        """Start to send and to receive. Returns at once."""
        with gpu.queue(self._device):  # not behind the work that others have queued
            if self._operations:
                self._under_way = dist.batch_isend_irecv(self._operations)

    def wait(self) -> None:
        """Wait until all messages have been sent and received."""
        with gpu.queue(self._device):
            for work in self._under_way:
                work.wait()

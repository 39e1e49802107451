"""PyTorch's tensors as `exchange.arrays.Arrays`."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Iterable, Optional, Sequence, Union

import numpy as np
import torch

from ...compression import CompressionParams
from ...compression import stream as streams
from ...compression.base import Compressor
from ...exchange.arrays import Calls, Order
from ...exchange.chunk import ExchangedChunk
from ...exchange.coder import Coder
from ...exchange.coding import Buffers, HostCalls
from ...exchange.collectives import Collectives
from . import gpu, nccl
from .gpu_calls import BetweenGpus, ByHost, GpuCoder, OnGpu
from .members import GroupMembers


class _HostOrder:
    """`Order` of work in host memory."""

    queue = staticmethod(nullcontext)


class Tensors:
    """`Arrays` for the members of an exchange."""

    host = None  # tensors of an emulated GPU are CPU tensors
    address = staticmethod(torch.Tensor.data_ptr)
    copy = staticmethod(gpu.copy_scaled)
    check_finite = staticmethod(gpu.check_finite)

    def memory(
        self, size: int, device: Optional[torch.device] = None
    ) -> Union[np.ndarray, torch.Tensor]:
        if device is None:
            return gpu.memory(size)
        with gpu.queue(device):
            return torch.zeros(size, dtype=torch.uint8, device=device)

    def view(self, room: Union[np.ndarray, torch.Tensor], dtype: str) -> torch.Tensor:
        room = torch.from_numpy(room) if isinstance(room, np.ndarray) else room
        return room.view(getattr(torch, dtype))

    def order(self, device: Optional[torch.device], memory: Iterable[torch.Tensor]) -> Order:
        if device is None:
            return _HostOrder()
        with gpu.queue(device):
            return gpu.Order(device, memory)

    def itemsize(self, dtype: str) -> int:
        return getattr(torch, dtype).itemsize

    def multiply(self, values: torch.Tensor, factor: float) -> None:
        values *= factor

    def zero(self, values: torch.Tensor) -> None:
        values.zero_()

    def sum_rows(self, rows: torch.Tensor, total: torch.Tensor) -> None:
        small = rows.itemsize < 4
        added = rows[0].float() if small else total.copy_(rows[0])
        for row in rows[1:]:
            added += row
        if small:
            total.copy_(added)

    def in_host_memory(self, device: torch.device) -> bool:
        return gpu.in_host_memory(device)

    def keeps_payloads(self, device: torch.device, compressor: Optional[Compressor]) -> bool:
        if not nccl.is_chosen() or gpu.in_host_memory(device):
            return False
        return compressor is None or gpu.has_kernels(device, compressor)

    def coder(
        self,
        device: torch.device,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: Optional[streams.State] = None,
        decodes_only: bool = False,
    ) -> Coder:
        if device is not None and gpu.has_kernels(device, params.compressor):
            return GpuCoder(device, params, n, dtype, start, decodes_only)
        return Coder(params, n, dtype, start, decodes_only)

    def calls(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> Calls:
        first = chunks[0]
        if first.on_gpu:
            return BetweenGpus(chunks, buffers)
        if first.device is None or gpu.in_host_memory(first.device):
            return HostCalls(chunks, buffers)
        return (OnGpu if isinstance(first.coder, GpuCoder) else ByHost)(chunks, buffers)

    def device_collectives(self, device: torch.device, members: GroupMembers) -> Collectives:
        first, second = members.nccl_groups()
        return Collectives(
            partial(nccl.GpuToOwners, group=first, device=device),
            partial(nccl.GpuToAll, group=second, device=device),
        )

"""PyTorch's tensors as `exchange.arrays.Arrays`, and `Calls` for values on a GPU."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from ... import kernels
from ...compression import CompressionParams
from ...compression import stream as streams
from ...compression.base import Compressor
from ...exchange.arrays import Calls, Order, Positions, Ratios, States
from ...exchange.chunk import ExchangedChunk
from ...exchange.coder import Coder
from ...exchange.coding import (
    Buffers,
    HostCalls,
    Parts,
    batch_of_aggregators,
    batch_of_answers,
    chunks_of,
    finite,
)
from ...exchange.collectives import Collectives
from ...exchange.job import Job
from ...kernels.library import TICKET_BYTES, Status
from . import gpu, nccl
from .members import GroupMembers

_ALIGNMENT = 64  # bytes, of a workspace


class _HostOrder:
    """`Order` of work in host memory."""

    queue = staticmethod(nullcontext)


class Tensors:
    """`Arrays` for the members of an exchange."""

    host = None  # tensors of an emulated GPU are CPU tensors
    address = staticmethod(torch.Tensor.data_ptr)
    copy = staticmethod(gpu.copy_scaled)
    check_finite = staticmethod(gpu.check_finite)

    def memory(self, size: int, device: torch.device | None = None) -> np.ndarray | torch.Tensor:
        if device is None:
            return gpu.memory(size)
        with gpu.queue(device):
            return torch.zeros(size, dtype=torch.uint8, device=device)

    def view(self, room: np.ndarray | torch.Tensor, dtype: str) -> torch.Tensor:
        room = torch.from_numpy(room) if isinstance(room, np.ndarray) else room
        return room.view(getattr(torch, dtype))

    def order(self, device: torch.device | None, memory: Iterable[torch.Tensor]) -> Order:
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

    def keeps_payloads(self, device: torch.device, compressor: Compressor | None) -> bool:
        if not nccl.is_chosen() or gpu.in_host_memory(device):
            return False
        return compressor is None or gpu.has_kernels(device, compressor)

    def coder(
        self,
        device: torch.device,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: streams.State | None = None,
        decodes_only: bool = False,
    ) -> Coder:
        if device is not None and gpu.has_kernels(device, params.compressor):
            return GpuCoder(device, params, n, dtype, start, decodes_only)
        return Coder(params, n, dtype, start, decodes_only)

    def calls(self, parts: Parts, buffers: Buffers) -> Calls:
        first = chunks_of(parts)[0]
        if first.on_gpu:
            return BetweenGpus(parts, buffers)
        if first.device is None or gpu.in_host_memory(first.device):
            return HostCalls(parts, buffers)
        return (OnGpu if isinstance(first.coder, GpuCoder) else ByHost)(parts, buffers)

    def device_collectives(self, device: torch.device, members: GroupMembers) -> Collectives:
        first, second = members.nccl_groups()
        return Collectives(
            partial(nccl.GpuToOwners, group=first, device=device),
            partial(nccl.GpuToAll, group=second, device=device),
        )


class GpuCoder(Coder):
    """A coder that compresses on a GPU. The residual and momentum are in GPU memory.

    `gpu_codec` is the codec for this GPU, `codec` the same codec for the CPU.
    """

    def __init__(
        self,
        device: torch.device,
        params: CompressionParams,
        n: int,
        dtype: str,
        start: streams.State | None,
        decodes_only: bool = False,
    ) -> None:
        self.device = device
        super().__init__(params, n, dtype, start, decodes_only)
        with gpu.queue(device):
            gpu.mark(device).synchronize()  # another thread will use the state

    def set_epoch(self, epoch: int | None) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    def _set_options(self, options: Mapping[str, Any]) -> None:
        super()._set_options(options)
        self.gpu_codec.set_options(options)

    def _add_copy(self) -> int:
        codec, dtype = self.codec, getattr(torch, self._dtype)
        sizes = codec.momentum or None, *codec.memory
        with gpu.queue(self.device):
            tensors = [
                None if size is None else torch.zeros(size, dtype=dtype, device=self.device)
                for size in sizes
            ]
        self._copies.append(tensors)
        return self._refer_to(_addresses(tensors))

    def memory(self) -> list[torch.Tensor]:
        """Return the tensors of the state that there are now."""
        return [tensor for copy in self._copies for tensor in copy if tensor is not None]

    def _in_host_memory(self, number: int) -> kernels.State:
        gpu.wait(self.device)
        arrays = [None if t is None else t.cpu().numpy().copy() for t in self._copies[number]]
        return kernels.State(arrays[0], tuple(arrays[1:]))

    def _write(self, state: kernels.State) -> None:
        gpu.wait(self.device)
        with gpu.queue(self.device):
            for tensor, array in zip(self._copies[self._now], (state.momentum, *state.memory)):
                if tensor is not None:
                    gpu.copy(torch.from_numpy(array), tensor)

    def use_memory(self, memory: torch.Tensor) -> None:
        self._has_foreign_memory = True
        ((momentum, _),) = self._copies
        self._copies = [[momentum, memory]]
        self._references = [kernels.StateReference(_addresses(self._copies[0]))]


def _addresses(tensors: Sequence[torch.Tensor | None]) -> kernels.StateAddresses:
    momentum, *memory = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return kernels.StateAddresses(momentum, (ctypes.c_void_p * 2)(*memory))


class ByHost(HostCalls):
    """Calls on the CPU, for values on a GPU, which are copied to host memory and back."""

    def __init__(self, parts: Parts, buffers: Buffers) -> None:
        super().__init__(parts, buffers)
        self._copies = {
            chunk: gpu.host_memory(chunk.plan.size, getattr(torch, chunk.plan.dtype))
            for chunk in chunks_of(parts)
        }

    def compress(
        self, job: Job, states: States, positions: Positions, ratios: Ratios
    ) -> Iterator[None]:
        copies, values = [self._copies[chunk] for chunk in self.outgoing], job.request.values
        with values.queue():
            for chunk, copy in zip(self.outgoing, copies):
                gpu.copy(values.of(chunk.piece), copy)
        addresses = [copy.data_ptr() for copy in copies]
        return self._compress_parts(addresses, positions, job.scale, ratios, states)

    def decompress(self, job: Job, positions: Positions) -> list[bool]:
        copies, sums = [self._copies[chunk] for chunk in self.delivered], job.request.sums
        self._decompress([copy.data_ptr() for copy in copies], positions)
        with sums.queue():
            for chunk, copy in zip(self.delivered, copies):
                gpu.copy(copy, sums.of(chunk.piece))
        return finite(self._decompress)


class _GpuCalls:
    """Calls on the GPU that has the values, for payloads in its memory.

    `memory` is further memory that the calls use.
    """

    def __init__(self, parts: Parts, buffers: Buffers, memory: Sequence[torch.Tensor]) -> None:
        chunks, self._parts = chunks_of(parts), [None] * len(parts)
        device = chunks[0].device
        outgoing, self.delivered = buffers.outgoing(chunks), buffers.delivered(chunks)
        self._encoded = [chunk.piece for chunk in outgoing]
        self._written = [chunk.piece for chunk in self.delivered]
        with gpu.queue(device):
            self._compress = GpuBatch("compress", device, [c.coder for c in outgoing])
            self._compress.write([buffers.sent[c] for c in outgoing])
            self._decompress = GpuBatch("decompress", device, [c.coder for c in self.delivered])
            self._decompress.read([buffers.answers[c] for c in self.delivered])
            memory = *memory, *self._compress.memory, *self._decompress.memory
            self._order = gpu.Order(device, memory)

    def compress(
        self, job: Job, states: States, positions: Positions, ratios: Ratios
    ) -> Iterable[None]:
        values = job.request.values
        addresses = values.addresses(self._encoded)
        with values.queue(), self._order.queue() as stream:
            self._compress.queue(stream)
            self._compress(addresses, positions, job.scale, ratios, states)
            self._sent()
        return self._parts

    def _decode(self, job: Job, positions: Positions) -> None:
        sums = job.request.sums
        addresses = sums.addresses(self._written)
        with sums.queue(), self._order.queue() as stream:
            self._decompress.queue(stream)
            self._decompress(addresses, positions)
            self._decoded()

    def _sent(self) -> None:
        """Called after payloads were written, within a `gpu.queue`."""

    def _decoded(self) -> None:
        """Called after payloads were decoded, within a `gpu.queue`."""


class BetweenGpus(_GpuCalls):
    """Calls on the GPU that has the values and all payloads. Received payloads are not checked.

    If tensors are checked for NaNs and infinities, decoding writes statuses in GPU memory. They are
    copied to host memory, and the host waits for them when the result of `decompress` is read.
    """

    def __init__(self, parts: Parts, buffers: Buffers) -> None:
        chunks = chunks_of(parts)
        device, aggregated = chunks[0].device, buffers.aggregated(chunks)
        with gpu.queue(device):
            self._aggregate = GpuBatch("aggregate", device, [c.aggregator for c in aggregated])
        self._aggregate.read([buffers.received[c] for c in aggregated])
        self._aggregate.write([buffers.answer[c] for c in aggregated])
        super().__init__(parts, buffers, self._aggregate.memory)
        self._finite: _Finite | None = None
        if any(chunk.checked for chunk in self.delivered):
            self._finite = _Finite(self._decompress.statuses_on_gpu)
            self._decompress.write_statuses()

    def aggregate(self, states: States, positions: Positions) -> None:
        with self._order.queue() as stream:
            self._aggregate.queue(stream)
            self._aggregate(positions=positions, states=states)

    def decompress(self, job: Job, positions: Positions) -> Iterable[bool]:
        self._decode(job, positions)
        return () if self._finite is None else self._finite

    def _decoded(self) -> None:
        if self._finite is not None:
            self._finite.copy()


class _Finite:
    """For each call whether its values are finite, from statuses in GPU memory."""

    def __init__(self, statuses: torch.Tensor) -> None:
        self._on_gpu = statuses
        self._on_host = gpu.host_memory(statuses.numel(), statuses.dtype).view(statuses.shape)

    def copy(self) -> None:
        """Start to copy the statuses to host memory, within a `gpu.queue`."""
        self._on_host.copy_(self._on_gpu, non_blocking=True)
        self._copied = gpu.mark(self._on_gpu.device)

    def __iter__(self) -> Iterator[bool]:
        self._copied.synchronize()
        return (finite != 0 for _, finite in self._on_host.tolist())


class OnGpu(_GpuCalls):
    """Calls on the GPU that has the values. Payloads are copied between GPU and host memory.

    The CPU checks received payloads before they are copied to the GPU, and aggregates them.
    """

    def __init__(self, parts: Parts, buffers: Buffers) -> None:
        chunks = chunks_of(parts)
        device = chunks[0].device
        with gpu.queue(device):
            sent = {c: _like(buffers.sent[c], device) for c in buffers.outgoing(chunks)}
            answers = {c: _like(buffers.answers[c], device) for c in buffers.delivered(chunks)}
        on_gpu = replace(buffers, sent=sent, answers=answers)
        super().__init__(parts, on_gpu, [*sent.values(), *answers.values()])
        self._copies_of_sent = _pairs(sent, buffers.sent)
        self._copies_of_answers = _pairs(answers, buffers.answers)
        self._inspect = batch_of_answers("inspect", self.delivered, buffers)
        self._aggregate = batch_of_aggregators(buffers.aggregated(chunks), buffers)

    def aggregate(self, states: States, positions: Positions) -> None:
        self._aggregate(positions=positions, states=states)

    def decompress(self, job: Job, positions: Positions) -> list[bool]:
        self._inspect(positions=positions)
        with self._order.queue():  # the host waits for these copies only, not for the decoding
            for payloads, received in self._copies_of_answers:
                gpu.copy(received, payloads)
        self._decode(job, positions)
        return finite(self._inspect)

    def _sent(self) -> None:
        for payload, sent in self._copies_of_sent:
            gpu.copy(payload, sent)


def _like(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.uint8, device=device)


def _pairs(
    on_gpu: Mapping[ExchangedChunk, torch.Tensor], on_host: Mapping[ExchangedChunk, np.ndarray]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor, torch.from_numpy(on_host[chunk])) for chunk, tensor in on_gpu.items()]


class GpuBatch(kernels.Batch):
    """A batch of calls on a GPU, made within a `gpu.queue`.

    Each call has its own workspace, ticket and status in GPU memory.

    Attributes
    ----------
    memory : list of Tensor
        The memory that the calls use, except values and payloads.
    statuses_on_gpu : Tensor of int64, shape (calls, 2)
        The statuses, after `write_statuses`.
    """

    def __init__(self, function: str, device: torch.device, coders: Sequence[GpuCoder]) -> None:
        codecs, count = [coder.gpu_codec for coder in coders], len(coders)
        sizes = [-(-codec.workspace_bytes // _ALIGNMENT) * _ALIGNMENT for codec in codecs]
        workspace = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        tickets = torch.zeros(count, TICKET_BYTES, dtype=torch.uint8, device=device)
        self.statuses_on_gpu = torch.zeros(count, 2, dtype=torch.int64, device=device)
        states = [tensor for coder in coders for tensor in coder.memory()]
        self.memory = [workspace, tickets, self.statuses_on_gpu, *states]
        begin = workspace.data_ptr()  # PyTorch aligns it to at least 64 bytes
        addresses = [begin + offset for offset in accumulate(sizes, initial=0)][:-1]
        super().__init__(function, codecs, workspaces=addresses)
        for i, call in enumerate(self._calls):
            call.ticket, call.status = tickets.data_ptr() + i * TICKET_BYTES, None

    def write_statuses(self) -> None:
        """Let the calls write their statuses."""
        begin, size = self.statuses_on_gpu.data_ptr(), ctypes.sizeof(Status)
        for i, call in enumerate(self._calls):
            call.status = ctypes.cast(begin + i * size, ctypes.POINTER(Status))

    def write(self, payload: Sequence[torch.Tensor]) -> None:
        """Set the tensors in GPU memory that the calls write payloads to."""
        for call, tensor in zip(self._calls, payload):
            call.payload = tensor.data_ptr()

    def read(self, payloads: Sequence[torch.Tensor]) -> None:
        """Set the tensors in GPU memory whose rows are the payloads that the calls read."""
        for call, tensor in zip(self._calls, payloads):
            call.payloads, call.stride, call.count = (
                tensor.data_ptr(),
                tensor.stride(0),
                len(tensor),
            )

    def queue(self, stream: int) -> None:
        """Set the CUDA stream of the calls."""
        for call in self._calls:
            call.stream = stream

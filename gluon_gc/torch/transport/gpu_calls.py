"""`exchange.arrays.Calls` for values on a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from ... import kernels
from ...compression import CompressionParams
from ...compression import stream as streams
from ...exchange.arrays import Positions, Ratios, States
from ...exchange.chunk import ExchangedChunk
from ...exchange.coder import Coder
from ...exchange.coding import Buffers, HostCalls, batch_of_aggregators, batch_of_answers, finite
from ...exchange.job import Job
from ...kernels.library import TICKET_BYTES
from . import gpu


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
        start: Optional[streams.State],
        decodes_only: bool = False,
    ) -> None:
        self.device = device
        super().__init__(params, n, dtype, start, decodes_only)

    def set_epoch(self, epoch: Optional[int]) -> None:
        super().set_epoch(epoch)
        self.gpu_codec = self._params.codec(self._n, self._dtype, epoch, "cuda")

    def _set_options(self, options: Mapping[str, Any]) -> None:
        super()._set_options(options)
        self.gpu_codec.set_options(options)

    def _add_copy(self) -> int:
        state = self.codec.state()
        with gpu.queue(self.device):
            tensors = [
                None if array is None else torch.from_numpy(array).to(self.device, copy=True)
                for array in (state.momentum, *state.memory)
            ]
        self._copies.append(tensors)
        return self._refer_to(_addresses(tensors))

    def _in_host_memory(self, number: int) -> kernels.State:
        with gpu.queue(self.device):
            arrays = [None if t is None else t.cpu().numpy().copy() for t in self._copies[number]]
        return kernels.State(arrays[0], tuple(arrays[1:]))

    def _write(self, state: kernels.State) -> None:
        with gpu.queue(self.device):
            for tensor, array in zip(self._copies[self._now], (state.momentum, *state.memory)):
                if tensor is not None:
                    gpu.copy(torch.from_numpy(array), tensor)

    def use_memory(self, memory: torch.Tensor) -> None:
        self._has_foreign_memory = True
        ((momentum, _),) = self._copies
        self._copies = [[momentum, memory]]
        self._references = [kernels.StateReference(_addresses(self._copies[0]))]


def _addresses(tensors: Sequence[Optional[torch.Tensor]]) -> kernels.StateAddresses:
    momentum, *memory = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return kernels.StateAddresses(momentum, (ctypes.c_void_p * 2)(*memory))


class ByHost(HostCalls):
    """Calls on the CPU, for values on a GPU, which are copied to host memory and back."""

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        super().__init__(chunks, buffers)
        self._copies = {
            chunk: gpu.host_memory(chunk.plan.size, getattr(torch, chunk.plan.dtype))
            for chunk in chunks
        }

    def compress(self, job: Job, states: States, positions: Positions, ratios: Ratios) -> None:
        copies, values = [self._copies[chunk] for chunk in self.outgoing], job.request.values
        with values.queue():
            for chunk, copy in zip(self.outgoing, copies):
                gpu.copy(values.of(chunk.piece), copy)
        addresses = [copy.data_ptr() for copy in copies]
        self._compress(addresses, positions, job.scale, ratios, states)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        copies, sums = [self._copies[chunk] for chunk in self.delivered], job.request.sums
        self._decompress([copy.data_ptr() for copy in copies], positions)
        with sums.queue():
            for chunk, copy in zip(self.delivered, copies):
                gpu.copy(copy, sums.of(chunk.piece))
        return finite(self._decompress)


class _GpuCalls:
    """Calls on the GPU that has the values, for payloads in its memory."""

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        self._device = chunks[0].device
        self._outgoing, self.delivered = buffers.outgoing(chunks), buffers.delivered(chunks)
        with gpu.queue(self._device):
            self._compress = GpuBatch("compress", [c.coder for c in self._outgoing])
            self._compress.write([buffers.sent[c] for c in self._outgoing])
            self._decompress = GpuBatch("decompress", [c.coder for c in self.delivered])
            self._decompress.read([buffers.answers[c] for c in self.delivered])

    def compress(self, job: Job, states: States, positions: Positions, ratios: Ratios) -> None:
        values = job.request.values
        addresses = [values.address(chunk.piece) for chunk in self._outgoing]
        with values.queue() as stream:
            self._compress.queue(stream)
            self._compress(addresses, positions, job.scale, ratios, states)
            self._sent()

    def _decode(self, job: Job, positions: Positions) -> None:
        sums = job.request.sums
        addresses = [sums.address(chunk.piece) for chunk in self.delivered]
        with sums.queue() as stream:
            self._received()
            self._decompress.queue(stream)
            self._decompress(addresses, positions)

    def _sent(self) -> None:
        """Called after payloads were written, within a `gpu.queue`."""

    def _received(self) -> None:
        """Called before payloads are read, within a `gpu.queue`."""


class BetweenGpus(_GpuCalls):
    """Calls on the GPU that has the values and all payloads. Received payloads are not checked."""

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        super().__init__(chunks, buffers)
        aggregated = buffers.aggregated(chunks)
        with gpu.queue(self._device):
            self._aggregate = GpuBatch("aggregate", [c.aggregator for c in aggregated])
            self._aggregate.read([buffers.received[chunk] for chunk in aggregated])
            self._aggregate.write([buffers.answer[chunk] for chunk in aggregated])

    def aggregate(self, states: States, positions: Positions) -> None:
        with gpu.queue(self._device) as stream:
            self._aggregate.queue(stream)
            self._aggregate(positions=positions, states=states)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        self._decode(job, positions)
        sums = job.request.sums
        with sums.queue():
            are_finite = [sums.of(chunk.piece).isfinite().all() for chunk in self.delivered]
            return torch.stack(are_finite).tolist() if are_finite else []


class OnGpu(_GpuCalls):
    """Calls on the GPU that has the values. Payloads are copied between GPU and host memory.

    The CPU checks received payloads before they are copied to the GPU, and aggregates them.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        device = chunks[0].device
        with gpu.queue(device):
            sent = {c: _like(buffers.sent[c], device) for c in buffers.outgoing(chunks)}
            answers = {c: _like(buffers.answers[c], device) for c in buffers.delivered(chunks)}
        super().__init__(chunks, replace(buffers, sent=sent, answers=answers))
        self._copies_of_sent = _pairs(sent, buffers.sent)
        self._copies_of_answers = _pairs(answers, buffers.answers)
        self._inspect = batch_of_answers("inspect", self.delivered, buffers)
        self._aggregate = batch_of_aggregators(buffers.aggregated(chunks), buffers)

    def aggregate(self, states: States, positions: Positions) -> None:
        self._aggregate(positions=positions, states=states)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        self._inspect(positions=positions)
        self._decode(job, positions)
        return finite(self._inspect)

    def _sent(self) -> None:
        for payload, sent in self._copies_of_sent:
            gpu.copy(payload, sent)

    def _received(self) -> None:
        for payloads, received in self._copies_of_answers:
            gpu.copy(received, payloads)


def _like(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.uint8, device=device)


def _pairs(
    on_gpu: Mapping[ExchangedChunk, torch.Tensor], on_host: Mapping[ExchangedChunk, np.ndarray]
) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor, torch.from_numpy(on_host[chunk])) for chunk, tensor in on_gpu.items()]


class GpuBatch(kernels.Batch):
    """A batch of calls on a GPU. Each call has its own workspace and ticket in GPU memory."""

    def __init__(self, function: str, coders: Sequence[GpuCoder]) -> None:
        codecs = [coder.gpu_codec for coder in coders]
        self._workspaces = [  # PyTorch aligns them to at least 64 bytes
            torch.empty(codec.workspace_bytes, dtype=torch.uint8, device=coder.device)
            for codec, coder in zip(codecs, coders)
        ]
        self._tickets = [
            torch.zeros(TICKET_BYTES, dtype=torch.uint8, device=c.device) for c in coders
        ]
        addresses = [workspace.data_ptr() for workspace in self._workspaces]
        super().__init__(function, codecs, workspaces=addresses)
        for call, ticket in zip(self._calls, self._tickets):
            call.ticket, call.status = ticket.data_ptr(), None

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

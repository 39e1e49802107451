"""Library calls that compress or decompress all chunks of a `Coding` at once, on the CPU or a GPU.

Each class has two methods. `compress` writes the payloads of a job's values to the buffers.
`decompress` writes the sums to the job's values, and returns for each chunk whether its sum is
finite. The attribute `delivered` lists the chunks whose sum this worker gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import torch

from .. import kernels
from ..kernels.library import TICKET_BYTES
from . import gpu
from .coder import GpuCoder
from .exchanged_chunk import OVER_NCCL, ExchangedChunk
from .job import Job

if TYPE_CHECKING:
    from .coding import Buffers

Positions = Optional[Sequence[kernels.Position]]
Ratios = Optional[Sequence[float]]
States = Sequence[kernels.StateOfCall]


class OnHost:
    """Calls on the CPU, for values in host memory.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    buffers : Buffers
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        self._outgoing, self.delivered = buffers.outgoing(chunks), buffers.delivered(chunks)
        self._compress = kernels.Batch(
            "compress",
            [chunk.coder.codec for chunk in self._outgoing],
            payload=[buffers.sent[chunk] for chunk in self._outgoing],
        )
        self._decompress = _batch_of_answers("decompress", self.delivered, buffers)

    def compress(self, job: Job, states: States, positions: Positions, ratios: Ratios) -> None:
        addresses = [job.address(chunk.piece) for chunk in self._outgoing]
        self._compress(addresses, positions, job.scale, ratios, states)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        self._decompress([job.address(chunk.piece) for chunk in self.delivered], positions)
        return _finite(self._decompress)


class ByHost(OnHost):
    """Calls on the CPU, for values on a GPU, which are copied to host memory and back."""

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        super().__init__(chunks, buffers)
        self._copies = {
            chunk: gpu.host_memory(chunk.plan.size, getattr(torch, chunk.plan.dtype))
            for chunk in chunks
        }

    def compress(self, job: Job, states: States, positions: Positions, ratios: Ratios) -> None:
        copies = [self._copies[chunk] for chunk in self._outgoing]
        with job.staged.queue():
            for chunk, copy in zip(self._outgoing, copies):
                gpu.copy(job.of(chunk.piece), copy)
        self._compress([copy.data_ptr() for copy in copies], positions, job.scale, ratios, states)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        copies = [self._copies[chunk] for chunk in self.delivered]
        self._decompress([copy.data_ptr() for copy in copies], positions)
        with job.staged.queue():
            for chunk, copy in zip(self.delivered, copies):
                gpu.copy(copy, job.of(chunk.piece))
        return _finite(self._decompress)


class BetweenGpus:
    """Calls on the GPU that has the values and the payloads. Received payloads are not checked.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
    buffers : Buffers
        In GPU memory.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        self._outgoing, self.delivered = buffers.outgoing(chunks), buffers.delivered(chunks)
        device = chunks[0].device
        with gpu.queue(device):
            self._compress = GpuBatch("compress", [c.coder for c in self._outgoing], device)
            self._compress.write([buffers.sent[c] for c in self._outgoing])
            self._decompress = GpuBatch("decompress", [c.coder for c in self.delivered], device)
            self._decompress.read([buffers.answers[c] for c in self.delivered])

    def compress(self, job: Job, states: States, positions: Positions, ratios: Ratios) -> None:
        addresses = [job.address(chunk.piece) for chunk in self._outgoing]
        with job.staged.queue() as stream:
            self._compress.queue(stream)
            self._compress(addresses, positions, job.scale, ratios, states)
            self._sent()

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        self._decode(job, positions)
        with job.staged.queue():
            finite = [job.of(chunk.piece).isfinite().all() for chunk in self.delivered]
            return torch.stack(finite).tolist() if finite else []

    def _decode(self, job: Job, positions: Positions) -> None:
        addresses = [job.address(chunk.piece) for chunk in self.delivered]
        with job.staged.queue() as stream:
            self._received()
            self._decompress.queue(stream)
            self._decompress(addresses, positions)

    def _sent(self) -> None:
        """Called after payloads were written, within a `gpu.queue`."""

    def _received(self) -> None:
        """Called before payloads are read, within a `gpu.queue`."""


class OnGpu(BetweenGpus):
    """Calls on the GPU that has the values. Payloads are copied between GPU and host memory.

    The CPU checks received payloads before they are copied to the GPU.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], buffers: Buffers) -> None:
        device = chunks[0].device
        with gpu.queue(device):
            sent = {c: _like(buffers.sent[c], device) for c in buffers.outgoing(chunks)}
            answers = {c: _like(buffers.answers[c], device) for c in buffers.delivered(chunks)}
        super().__init__(chunks, replace(buffers, sent=sent, answers=answers))
        self._copies_of_sent = _pairs(sent, buffers.sent)
        self._copies_of_answers = _pairs(answers, buffers.answers)
        self._inspect = _batch_of_answers("inspect", self.delivered, buffers)

    def decompress(self, job: Job, positions: Positions) -> List[bool]:
        self._inspect(positions=positions)
        self._decode(job, positions)
        return _finite(self._inspect)

    def _sent(self) -> None:
        for payload, sent in self._copies_of_sent:
            gpu.copy(payload, sent)

    def _received(self) -> None:
        for payloads, received in self._copies_of_answers:
            gpu.copy(received, payloads)


def _pairs(
    on_gpu: Mapping[ExchangedChunk, torch.Tensor], on_host: Mapping[ExchangedChunk, np.ndarray]
) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor, torch.from_numpy(on_host[chunk])) for chunk, tensor in on_gpu.items()]


class GpuBatch(kernels.Batch):
    """A batch of calls on a GPU. Each call has its own workspace and ticket in GPU memory.

    Parameters
    ----------
    function : str
        "compress", "aggregate" or "decompress".
    coders : sequence of GpuCoder
    device : torch.device
    """

    def __init__(self, function: str, coders: Sequence[GpuCoder], device: torch.device) -> None:
        codecs = [coder.gpu_codec for coder in coders]
        self._workspaces = [  # PyTorch aligns them to at least 64 bytes
            torch.empty(codec.workspace_bytes, dtype=torch.uint8, device=device) for codec in codecs
        ]
        self._tickets = torch.zeros(len(codecs) * TICKET_BYTES, dtype=torch.uint8, device=device)
        addresses = [workspace.data_ptr() for workspace in self._workspaces]
        super().__init__(function, codecs, workspaces=addresses)
        for i, call in enumerate(self._calls):
            call.ticket = self._tickets.data_ptr() + i * TICKET_BYTES
            call.status = None

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


def calls_of(chunks: Sequence[ExchangedChunk]) -> Type[Union[OnHost, BetweenGpus]]:
    """Return the class for the chunks of a `Coding`."""
    if chunks[0].kind == OVER_NCCL:
        return BetweenGpus
    if gpu.in_host_memory(chunks[0].device):
        return OnHost
    return OnGpu if isinstance(chunks[0].coder, GpuCoder) else ByHost


def _batch_of_answers(
    function: str, delivered: Sequence[ExchangedChunk], buffers: Buffers
) -> kernels.Batch:
    codecs = [chunk.coder.codec for chunk in delivered]
    return kernels.Batch(function, codecs, payloads=[buffers.answers[c] for c in delivered])


def _finite(batch: kernels.Batch) -> List[bool]:
    return [bool(status.finite) for status in batch.statuses]


def _like(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.uint8, device=device)

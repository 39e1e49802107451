"""Where payloads are made and read, of channels that are compressed alike: on the CPU or on a GPU.

Each of these classes has `compress`, which writes the payloads of a job's values to where they are
sent from, and `decompress`, which writes what came to the values and returns statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Type, Union

import numpy as np
import torch

from .. import kernels
from ..kernels.library import TICKET_BYTES, Status
from . import gpu
from .channel import Channel
from .coder import GpuCoder
from .job import Job

if TYPE_CHECKING:
    from .coding import Places

Positions = Optional[Sequence[kernels.Position]]
Ratios = Optional[Sequence[float]]


class OnHost:
    """By the CPU, of values in its memory.

    Parameters
    ----------
    channels : sequence of Channel
    delivered : sequence of Channel
        Those of which this worker gets the sum.
    places : Places
    """

    def __init__(
        self, channels: Sequence[Channel], delivered: Sequence[Channel], places: Places
    ) -> None:
        self._channels, self._delivered = channels, delivered
        self._compress = kernels.Batch(
            "compress",
            [channel.coder.codec for channel in channels],
            [channel.coder.carried for channel in channels],
            [places.sent[channel] for channel in channels],
        )
        self._decompress = _batch_of_answers("decompress", delivered, places)

    def compress(self, job: Job, positions: Positions, ratios: Ratios) -> None:
        addresses = [job.address(channel.piece) for channel in self._channels]
        self._compress(addresses, positions, job.scale, ratios)

    def decompress(self, job: Job, positions: Positions) -> Sequence[Status]:
        self._decompress([job.address(channel.piece) for channel in self._delivered], positions)
        return self._decompress.statuses


class ByHost(OnHost):
    """By the CPU, of values that are copied to its memory, and back."""

    def __init__(
        self, channels: Sequence[Channel], delivered: Sequence[Channel], places: Places
    ) -> None:
        super().__init__(channels, delivered, places)
        self._copies = {
            channel: gpu.host_memory(channel.chunk.size, getattr(torch, channel.chunk.dtype))
            for channel in {*channels, *delivered}
        }

    def compress(self, job: Job, positions: Positions, ratios: Ratios) -> None:
        copies = [self._copies[channel] for channel in self._channels]
        with job.staged.queue():
            for channel, copy in zip(self._channels, copies):
                gpu.copy(job.of(channel.piece), copy)
        self._compress([copy.data_ptr() for copy in copies], positions, job.scale, ratios)

    def decompress(self, job: Job, positions: Positions) -> Sequence[Status]:
        copies = [self._copies[channel] for channel in self._delivered]
        self._decompress([copy.data_ptr() for copy in copies], positions)
        with job.staged.queue():
            for channel, copy in zip(self._delivered, copies):
                gpu.copy(copy, job.of(channel.piece))
        return self._decompress.statuses


class OnGpu:
    """By the GPU that the values are on, from whose memory payloads are copied, and to it.

    What came is checked by the CPU, before it is copied.
    """

    def __init__(
        self, channels: Sequence[Channel], delivered: Sequence[Channel], places: Places
    ) -> None:
        self._channels, self._delivered = channels, delivered
        device = channels[0].device
        with gpu.queue(device):
            self._sent = [
                (_like(places.sent[channel], device), torch.from_numpy(places.sent[channel]))
                for channel in channels
            ]
            self._came = [
                (torch.from_numpy(places.answers[c]), _like(places.answers[c], device))
                for c in delivered
            ]
            self._compress = _GpuBatch("compress", [c.coder for c in channels], device)
            self._compress.write([payload for payload, _ in self._sent])
            self._decompress = _GpuBatch("decompress", [c.coder for c in delivered], device)
            self._decompress.read([payloads for _, payloads in self._came])
        self._inspect = _batch_of_answers("inspect", delivered, places)

    def compress(self, job: Job, positions: Positions, ratios: Ratios) -> None:
        addresses = [job.address(channel.piece) for channel in self._channels]
        with job.staged.queue() as stream:
            self._compress.queue(stream)
            self._compress(addresses, positions, job.scale, ratios)
            for payload, sent in self._sent:
                gpu.copy(payload, sent)

    def decompress(self, job: Job, positions: Positions) -> Sequence[Status]:
        self._inspect(positions=positions)
        addresses = [job.address(channel.piece) for channel in self._delivered]
        with job.staged.queue() as stream:
            for came, payloads in self._came:
                gpu.copy(came, payloads)
            self._decompress.queue(stream)
            self._decompress(addresses, positions)
        return self._inspect.statuses


class _GpuBatch(kernels.Batch):
    """Calls for codecs of a GPU, of which each has a workspace and a ticket of its own there.

    Parameters
    ----------
    function : str
        "compress" or "decompress".
    coders : sequence of GpuCoder
    device : torch.device
    """

    def __init__(self, function: str, coders: Sequence[GpuCoder], device: torch.device) -> None:
        codecs = [coder.gpu_codec for coder in coders]
        self._workspaces = [  # which PyTorch aligns to 64 bytes at least
            torch.empty(codec.workspace_bytes, dtype=torch.uint8, device=device) for codec in codecs
        ]
        self._tickets = torch.zeros(len(codecs) * TICKET_BYTES, dtype=torch.uint8, device=device)
        addresses = [workspace.data_ptr() for workspace in self._workspaces]
        super().__init__(function, codecs, workspaces=addresses)
        for i, (call, coder) in enumerate(zip(self._calls, coders)):
            call.ticket = self._tickets.data_ptr() + i * TICKET_BYTES
            call.momentum, call.memory = coder.addresses
            call.status = None

    def write(self, payload: Sequence[torch.Tensor]) -> None:
        """Have payloads written here, in the GPU's memory."""
        for call, tensor in zip(self._calls, payload):
            call.payload = tensor.data_ptr()

    def read(self, payloads: Sequence[torch.Tensor]) -> None:
        """Have payloads read here, in the GPU's memory: rows of tensors."""
        for call, tensor in zip(self._calls, payloads):
            call.payloads, call.stride, call.count = (
                tensor.data_ptr(),
                tensor.stride(0),
                len(tensor),
            )

    def queue(self, stream: int) -> None:
        """Have calls queued in a stream."""
        for call in self._calls:
            call.stream = stream


def calls_of(channels: Sequence[Channel]) -> Type[Union[OnHost, OnGpu]]:
    """The class of these that does it for channels, all alike."""
    if gpu.in_host_memory(channels[0].device):
        return OnHost
    return OnGpu if isinstance(channels[0].coder, GpuCoder) else ByHost


def _batch_of_answers(function: str, delivered: Sequence[Channel], places: Places) -> kernels.Batch:
    codecs = [channel.coder.codec for channel in delivered]
    answers = [places.answers[channel] for channel in delivered]
    return kernels.Batch(function, codecs, payloads=answers)


def _like(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.uint8, device=device)

"""GPUs that tensors are on: what is queued there, and which compressors run there.

A thread of ours queues in streams of its own, and waits for them before it hands on what it made:
so nothing that is under way on a GPU outlives what it works on.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

import torch

from ..compression.base import Compressor

CPU = torch.device("cpu")


class _Own(threading.local):
    """What a thread has of its own."""

    def __init__(self) -> None:
        self.streams: Dict[torch.device, torch.cuda.Stream] = {}


_own = _Own()


def in_host_memory(device: torch.device) -> bool:
    """Whether the CPU reaches the memory of tensors on a device."""
    return device.type == "cpu"


def has_kernels(device: torch.device, compressor: Compressor) -> bool:
    """Whether a compressor can run on a GPU; if the library has no kernels, the log says so."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return compressor.runs_on_gpu()


def mark(device: torch.device) -> Any:
    """What this thread has queued on a device so far, for `queue` to be after; None for the CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


@contextmanager
def queue(device: torch.device, after: Any = None) -> Iterator[Optional[int]]:
    """Queue what is done in this block in a stream of this thread's, and wait for it at the end.

    Parameters
    ----------
    device : torch.device
        With the CPU there is nothing to queue or to wait for.
    after : optional
        What `mark` returned.

    Yields
    ------
    int or None
        The stream as the library takes it: a cudaStream_t.
    """
    if device.type != "cuda":
        yield None
        return
    stream = _stream(device)
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield stream.cuda_stream
    stream.synchronize()


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _own.streams:
        _own.streams[device] = torch.cuda.Stream(device)
    return _own.streams[device]


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy from one device to another, in a `queue`, which waits for it."""
    target.copy_(source, non_blocking=source.is_cuda or target.is_cuda)


def copy_scaled(source: torch.Tensor, scale: float, target: torch.Tensor) -> None:
    """Write source * scale to target, which may be elsewhere, or of another dtype."""
    if scale == 1.0:
        copy(source, target)
    elif (source.device, source.dtype) == (target.device, target.dtype):
        torch.mul(source, scale, out=target)
    else:
        copy(source * scale, target)


def host_memory(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in the host's memory, which a GPU copies to and from fast, where one is in use."""
    return torch.zeros(size, dtype=dtype, pin_memory=torch.cuda.is_initialized())

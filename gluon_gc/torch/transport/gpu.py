"""Work on GPUs: CUDA streams, copies, and the compressors that run there.

Each thread of gluon_gc uses its own CUDA stream, and synchronizes with it before it passes a result
on. So no GPU work is still running when its buffers are reused.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Optional

import numpy as np
import torch

from ... import kernels
from ...compression.base import Compressor

CPU = torch.device("cpu")


class _Own(threading.local):
    """The CUDA streams of one thread."""

    def __init__(self) -> None:
        self.streams: Dict[torch.device, torch.cuda.Stream] = {}


_own = _Own()


def in_host_memory(device: torch.device) -> bool:
    """Return whether the CPU can read tensors of this device."""
    return device.type == "cpu"


def has_kernels(device: torch.device, compressor: Compressor) -> bool:
    """Return whether a compressor can run on a GPU; log it if the library has no kernels."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return compressor.runs_on_gpu()


def mark(device: torch.device) -> Any:
    """Return an event after everything that this thread has queued on a device; None for the CPU.

    `queue` can wait for it.
    """
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait(device: torch.device) -> None:
    """Wait for everything that all threads have queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def queue(device: torch.device, after: Any = None) -> Iterator[Optional[int]]:
    """Run the GPU work of this context in the thread's own stream, and wait for it at the end.

    The stream first waits for `after`, the result of `mark`. The context yields the stream in the
    form of the library, a cudaStream_t. For the CPU, it has no effect and yields None.
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
    """Copy from one device to another, within a `queue`, which waits for the copy."""
    target.copy_(source, non_blocking=source.is_cuda or target.is_cuda)


def copied_later(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to copy to host memory; the result waits for the copy and returns it."""
    if values.device.type != "cuda":
        return lambda: values
    copied = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    copied.copy_(values, non_blocking=True)
    done = mark(values.device)

    def wait_for_copy() -> torch.Tensor:
        done.synchronize()
        return copied

    return wait_for_copy


def copy_scaled(source: torch.Tensor, target: torch.Tensor, scale: float = 1.0) -> None:
    """Write source * scale to target, which may have another device or dtype."""
    if scale == 1.0:
        copy(source, target)
    elif (source.device, source.dtype) == (target.device, target.dtype):
        torch.mul(source, scale, out=target)
    else:
        copy(source * scale, target)


def host_memory(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate zeros in host memory, pinned if CUDA is in use, for fast copies."""
    return torch.zeros(size, dtype=dtype, device="cpu", pin_memory=torch.cuda.is_initialized())


def memory(size: int) -> np.ndarray:
    """Allocate `host_memory` for messages: uint8, shape (size,)."""
    return host_memory(size, torch.uint8).numpy()


def is_finite(values: torch.Tensor) -> bool:
    """Return whether values have no NaN and no infinity."""
    if values.is_cuda:
        return bool(values.isfinite().all())
    values = values.float() if values.dtype == torch.bfloat16 else values
    return kernels.values_finite(values.numpy())

"""Work on GPUs: CUDA streams, events, copies, and the compressors that run there.

Each thread of gluon_gc has its own CUDA stream. Events keep the work in order on the device:

- Values. Work on them waits for an event that `Staged` records in the caller's stream. The future
  of an exchange records an event after the last write. A stream that waits for the future waits for
  this event.
- Payloads, workspaces, tickets and statuses have an `Order`: each use waits for the last one on any
  thread. So this step's `compress` waits for the last step's `decompress`. In between, NCCL waits
  for the stream that starts it, and the stream of the next stage waits for NCCL.
- Residuals and momentum belong to the thread that compresses. Another thread, which saves or loads
  them, first waits for the whole device.
- Memory that another stream uses than the one it was allocated in is recorded there
  (`Tensor.record_stream`), so that the allocator does not reuse it too early.

The host waits for a device only at the end of a `queue` that has copied to or from host memory. The
CPU then sends the copy, or receives the next message into the memory that was copied.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import cuda

from ... import kernels
from ...compression.base import Compressor

CPU = torch.device("cpu")


class _Own(threading.local):
    """The CUDA streams of one thread, and whether its queue has copied to or from host memory."""

    def __init__(self) -> None:
        self.streams: dict[torch.device, cuda.Stream] = {}
        self.has_copied = False


_own = _Own()


def in_host_memory(device: torch.device) -> bool:
    """Return whether the CPU can read tensors of this device."""
    return device.type == "cpu"


def has_streams(device: torch.device) -> bool:
    """Return whether work on a device is queued in CUDA streams."""
    return device.type == "cuda"


def has_kernels(device: torch.device, compressor: Compressor) -> bool:
    """Return whether a compressor can run on a GPU; log it if the library has no kernels."""
    if not has_streams(device):
        return False
    with cuda.device(device):
        return compressor.runs_on_gpu()


def mark(device: torch.device) -> Any:
    """Return an event after the work in the current stream of this thread; None for the CPU."""
    return cuda.current_stream(device).record_event() if has_streams(device) else None


def wait(device: torch.device) -> None:
    """Let the host wait for everything that all threads have queued on a device."""
    if has_streams(device):
        cuda.synchronize(device)


@contextmanager
def queue(device: torch.device, *events: Any) -> Iterator[int | None]:
    """Queue the GPU work of this context in the thread's own stream, after these events.

    If the work copies to or from host memory, the host waits for it at the end. The context yields
    the stream in the form of the library, a cudaStream_t. For the CPU, it has no effect and yields
    None.
    """
    if not has_streams(device):
        yield None
        return
    if device not in _own.streams:
        _own.streams[device] = cuda.Stream(device)
    stream = _own.streams[device]
    for event in events:
        stream.wait_event(event)
    with cuda.stream(stream):
        yield stream.cuda_stream
        if _own.has_copied:
            _own.has_copied = False
            stream.record_event().synchronize()


class Order:
    """The order of the GPU work on some memory, which several threads queue.

    `memory` was allocated, and perhaps written, in the current stream.
    """

    def __init__(self, device: torch.device, memory: Iterable[torch.Tensor] = ()) -> None:
        self._device, self._memory = device, list(memory)
        self._start = mark(device)
        self._last: dict[int, Any] = {}  # the last event of each stream that has used the memory

    def queue(self) -> ContextManager[int | None]:
        """Return a `gpu.queue` after all work so far."""
        return self._queue(self._start, *self._last.values())

    def queue_beside(self) -> ContextManager[int | None]:
        """Return a `gpu.queue` after the start, which may overlap with work of other threads."""
        return self._queue(self._start)

    def _queue(self, *events: Any) -> ContextManager[int | None]:
        return self._queued(events) if has_streams(self._device) else nullcontext()

    @contextmanager
    def _queued(self, events: Sequence[Any]) -> Iterator[int]:
        with queue(self._device, *events) as stream:
            if stream not in self._last:
                record(self._memory)
            yield stream
            self._last[stream] = mark(self._device)


def record(memory: Iterable[torch.Tensor]) -> None:
    """Let the allocator not reuse memory on a GPU before the current stream has used it."""
    for tensor in memory:
        if is_on_gpu(tensor):
            tensor.record_stream(cuda.current_stream(tensor.device))


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy from one device to another, within a `queue`."""
    on_gpu = is_on_gpu(source), is_on_gpu(target)
    target.copy_(source, non_blocking=any(on_gpu))
    if any(on_gpu) and not all(on_gpu):
        _own.has_copied = True


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in the memory of a GPU."""
    return tensor.is_cuda


def copied_later(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to copy to host memory; the result waits for the copy and returns it."""
    if not has_streams(values.device):
        return lambda: values
    copied = host_memory(values.numel(), values.dtype).view(values.shape)
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
    elif (is_on_gpu(source), source.dtype) == (is_on_gpu(target), target.dtype):
        torch.mul(source, scale, out=target)
    else:
        copy(source * scale, target)


def host_memory(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate zeros in host memory, pinned if CUDA is in use, for fast copies."""
    return torch.zeros(size, dtype=dtype, device="cpu", pin_memory=cuda.is_initialized())


def memory(size: int) -> np.ndarray:
    """Allocate `host_memory` for messages: uint8, shape (size,)."""
    return host_memory(size, torch.uint8).numpy()


def check_finite(values: torch.Tensor) -> Callable[[], bool]:
    """Check values for NaNs and infinities; the result tells whether there are none.

    It waits until a GPU has checked them.
    """
    if is_on_gpu(values):
        found = copied_later(values.isfinite().all())
        return lambda: bool(found())
    values = values.float() if values.dtype == torch.bfloat16 else values
    is_finite = kernels.values_finite(values.numpy())
    return lambda: is_finite

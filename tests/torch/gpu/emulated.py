"""Makes gluon_gc.torch treat CPU tensors as tensors on an emulated GPU.

This runs all GPU code. The streams of streams.py replace those of PyTorch, and Gloo carries the
messages of NCCL. The allocator of PyTorch is not emulated.
"""

from bisect import bisect
from contextlib import contextmanager
from pathlib import Path

import torch

from gluon_gc.torch.transport import arrays, gpu, nccl, staging
from tests.cuda import emulator

from . import streams

_copy, _host_memory, _make_batch = gpu.copy, gpu.host_memory, arrays.GpuBatch.__init__
_queued, _cpu = gpu.Order._queued, torch.Tensor.cpu
_on_host = []  # the sorted addresses of host memory, with their ends and tensors


def start(folder):
    """Start to emulate. `emulator.build` made the folder; None means a GPU without our kernels."""
    if folder is not None:
        emulator.load(Path(folder))
    gpu.cuda = streams.Cuda
    gpu.in_host_memory, gpu.has_streams = lambda device: False, lambda device: True
    gpu.has_kernels = lambda device, compressor: folder is not None and _runs(compressor)
    gpu.is_on_gpu, gpu.record = _is_on_gpu, lambda memory: None
    gpu.copy, gpu.host_memory = _copy_in_queue, _known_host_memory
    gpu.Order._queued = _holding_queue
    torch.Tensor.cpu = _copied_to_cpu
    arrays.GpuBatch.__init__ = _make_queued_batch
    nccl.BACKEND, nccl.batch_isend_irecv = "gloo", streams.batch_isend_irecv
    staging.Future = streams.StreamFuture


def _runs(compressor):
    assert compressor == compressor.on_gpu(), "the options are not those for a GPU"
    return compressor.runs_on_gpu()


def _known_host_memory(size, dtype):
    memory = _host_memory(size, dtype)
    begin = memory.data_ptr()
    _on_host.insert(bisect(_on_host, (begin,)), (begin, begin + memory.nbytes, memory))
    return memory


def _is_on_gpu(tensor):
    """Return whether a tensor is neither host memory nor made of a NumPy array."""
    address = tensor.data_ptr()
    before = bisect(_on_host, (address + 1,)) - 1
    in_host_memory = before >= 0 and address < _on_host[before][1]
    return not in_host_memory and tensor.untyped_storage().resizable()


@contextmanager
def _holding_queue(order, events):
    with _queued(order, events) as stream, streams.holding(order._memory):
        yield stream


def _copied_to_cpu(tensor):
    """Copy, as from a GPU: an array of the tensor itself would make it one of host memory."""
    if tensor.is_sparse or not _is_on_gpu(tensor):
        return _cpu(tensor)
    copied, stream = tensor.clone(), streams.Cuda.current_stream()
    stream.run_until(stream.queued)
    return copied


def _copy_in_queue(source, target):
    if _is_on_gpu(source) or _is_on_gpu(target):
        assert streams.Cuda.current_stream().name != "host", "this is not in a queue"
    _copy(source, target)


def _make_queued_batch(batch, *arguments):
    _make_batch(batch, *arguments)
    batch._function = streams.queued_call(batch._function)

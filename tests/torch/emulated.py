"""Makes gluon_gc.torch treat CPU tensors as tensors on an emulated GPU.

This runs all GPU code except PyTorch's own streams and copies, and NCCL, which PyTorch for CPUs
lacks. Gloo carries the messages of NCCL.
"""

import threading
from contextlib import contextmanager
from pathlib import Path

from gluon_gc.torch.transport import gpu, nccl
from tests.cuda import emulator

STREAM = 7


def start(folder):
    """Start to emulate. `emulator.build` made the folder; None means a GPU without our kernels."""
    if folder is not None:
        emulator.load(Path(folder))
    gpu.in_host_memory = lambda device: False
    gpu.has_kernels = lambda device, compressor: folder is not None and _runs(compressor)
    nccl.BACKEND = "gloo"
    gpu.queue = _queue
    gpu.copy = _queued(_copy)


def _runs(compressor):
    assert compressor == compressor.on_gpu(), "the options are not those for a GPU"
    return compressor.runs_on_gpu()


_own = threading.local()
_copy = gpu.copy


@contextmanager
def _queue(device, after=None):
    _own.queues = True
    yield STREAM
    _own.queues = False


def _queued(function):
    """Wrap a function so that it fails outside a queue, where nobody would wait for it."""

    def checked(*arguments):
        assert getattr(_own, "queues", False), "this is not in a queue"
        return function(*arguments)

    return checked

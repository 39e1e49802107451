"""Gradient compression for PyTorch: a hook for DistributedDataParallel, and BytePS's API.

Bytes travel through torch.distributed; torchrun starts the workers.

    import gluon_gc.torch as bps
"""

from .broadcasts import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .fsdp import compress_reduce_scatter
from .functions import (
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from .hook import compression_hook
from .optimizer import DistributedOptimizer
from .runtime import init, local_rank, local_size, rank, shutdown, size
from .state import CompressionState

__all__ = [
    "CompressionState",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress_reduce_scatter",
    "compression_hook",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]

"""Gradient compression for PyTorch: a DistributedDataParallel hook, and BytePS's API.

torch.distributed sends the data between the workers. torchrun or another launcher starts them.

    import gluon_gc.torch as bps
"""

from ..mailbox import report_loss, rounds, worker_name, worker_seed
from .byteps.broadcasts import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .byteps.push_pull import (
    byteps_push_pull,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from .byteps.runtime import init, local_rank, local_size, rank, shutdown, size
from .compression import Compression
from .ddp import compression_hook
from .fsdp import compress_all_gather, compress_reduce_scatter, compress_replicas
from .gradients.state import CompressionState
from .optimizer.distributed import DistributedOptimizer
from .reports import report
from .running_statistics import average_statistics
from .state.suspension import resume, suspend

__all__ = [
    "Compression",
    "CompressionState",
    "DistributedOptimizer",
    "average_statistics",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "compress_all_gather",
    "compress_reduce_scatter",
    "compress_replicas",
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
    "report",
    "report_loss",
    "resume",
    "rounds",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
    "worker_name",
    "worker_seed",
]

"""The names of byteps.torch.ops, which BytePS scripts import."""

from .byteps.push_pull import (
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
from .state.suspension import resume, suspend

__all__ = [
    "Compression",
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
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

"""Checks whether the library's kernels run on the GPUs of this machine."""

from __future__ import annotations

from functools import lru_cache

from ..log import logger
from .library import library


def runs_on_gpu(source: str) -> bool:
    """Whether this process can run the kernels of a source file in operators/cuda.

    If it cannot, one warning in the log gives the reason.

    Parameters
    ----------
    source : str
        The name of a compressor, "convert" or "clip".
    """
    reason = library.gluon_gc_cuda_ready(source.encode())
    if reason is not None:
        _warn(reason.decode())
    return reason is None


@lru_cache(maxsize=None)
def _warn(reason: str) -> None:
    logger.warning("gradients on a GPU are copied to the CPU to be compressed: %s", reason)

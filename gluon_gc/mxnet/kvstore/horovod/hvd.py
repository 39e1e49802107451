"""Imports Horovod, and patches a race in it."""

from __future__ import annotations

import ctypes
from typing import Any

from mxnet.base import _LIB

from .... import kernels


def load() -> Any:
    """Import and patch horovod.mxnet.

    Horovod 0.28.1 may free the name of a finished collective while a thread still reads it. The
    patch keeps the name until then (operators/mxnet/horovod.cpp).
    """
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise ImportError(
            f"the horovod backend needs Horovod built for this MXNet ({error}); "
            "docs/guides/horovod.md says how"
        ) from None
    alltoall = hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_alltoall_async
    within, push = (ctypes.cast(f, ctypes.c_void_p) for f in (alltoall, _LIB.MXEnginePushAsync))
    kernels.library.gluon_gc_keep_arguments(within, push)
    return hvd

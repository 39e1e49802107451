"""Horovod's module, mended."""

from __future__ import annotations

import ctypes
from typing import Any

from mxnet.base import _LIB

from .... import kernels


def load() -> Any:
    """horovod.mxnet, whose threads may be late to read the name of a collective that is done.

    Raises
    ------
    ImportError
        Horovod is not there, or was built without MXNet.
    """
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise ImportError(
            f"the horovod backend needs Horovod built for this MXNet ({error}); "
            "docs/guides/horovod.md says how"
        ) from None
    theirs = hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_alltoall_async
    within, push = (ctypes.cast(f, ctypes.c_void_p) for f in (theirs, _LIB.MXEnginePushAsync))
    kernels.library.gluon_gc_keep_arguments(within, push)
    return hvd

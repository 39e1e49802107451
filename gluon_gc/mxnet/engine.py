"""Order on MXNet's engine beyond what operators read and write."""

from __future__ import annotations

import ctypes

from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from .. import kernels

_NOTHING = ctypes.cast(kernels.library.gluon_gc_nothing, ctypes.c_void_p)
CPU = (ctypes.c_int * 2)(1, 0)
"""MXNet's struct Context, of the CPU."""


def meet(*arrays: NDArray) -> None:
    """Let what is queued for any of these arrays from now on wait for all that is queued already.

    An operator of a library would hold shared resources while it waits; this does not.
    """
    handles = (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))
    check_call(
        _LIB.MXEnginePushSyncND(
            _NOTHING, None, None, CPU, None, 0, handles, len(arrays), None, 0, b"gluon_gc_meet"
        )
    )

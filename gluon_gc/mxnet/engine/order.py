"""Queues C functions on MXNet's engine, to order operators beyond their inputs and outputs."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence

from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray

from ... import kernels

_NOTHING = ctypes.cast(kernels.library.gluon_gc_nothing, ctypes.c_void_p)
_FREE = ctypes.cast(_LIB.MXNDArrayFree, ctypes.c_void_p)
_CPU = (ctypes.c_int * 2)(1, 0)  # MXNet's struct Context


def push(
    push_function: Any,
    function: ctypes.c_void_p,
    parameter: Any,
    read: Sequence[NDArray],
    written: Sequence[NDArray],
    *more: bool,
    deleter: Optional[ctypes.c_void_p] = None,
) -> None:
    """Queue a C function with its parameter, by MXEnginePushSyncND or MXEnginePushAsyncND.

    The deleter is called with the parameter after the function has run.
    """
    name = b"gluon_gc_order"
    variables = (_handles(read), len(read), _handles(written), len(written))
    call = (function, parameter, deleter, _CPU)
    check_call(push_function(*call, *variables, None, 0, name, *more))


def _handles(arrays: Sequence[NDArray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))


def meet(*arrays: NDArray) -> None:
    """Make later operators on any of these arrays wait for all operators queued on them so far.

    An operator of our library could do this too, but would hold shared resources while it waits.
    """
    push(_LIB.MXEnginePushSyncND, _NOTHING, None, (), arrays)


def second_handle(array: NDArray) -> NDArrayHandle:
    """A second handle of an array's memory, which keeps its shape if the array's changes."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArraySlice(array.handle, 0, array.shape[0], ctypes.byref(handle)))
    return handle


def free_when_done(handle: NDArrayHandle, array: NDArray) -> None:
    """Free a handle after all queued operators that write the array have run."""
    push(_LIB.MXEnginePushSyncND, _NOTHING, handle, (array,), (), deleter=_FREE)

"""Order on MXNet's engine beyond operators' inputs and outputs, also between processes."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import numpy as np
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
    deleter: ctypes.c_void_p | None = None,
) -> None:
    """Queue a C function by MXEnginePushSyncND or MXEnginePushAsyncND; `deleter` runs after it."""
    name = b"gluon_gc_order"
    variables = (_handles(read), len(read), _handles(written), len(written))
    call = (function, parameter, deleter, _CPU)
    check_call(push_function(*call, *variables, None, 0, name, *more))


def _handles(arrays: Sequence[NDArray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))


def join(*arrays: NDArray) -> None:
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


# Eventcounts (Reed and Kanodia 1979): shared counters that the engine advances and awaits. Waiting
# occupies no thread of the engine, and no Python thread (operators/mxnet/eventcounts.cpp).

_ADVANCE, _AWAIT = (
    ctypes.cast(function, ctypes.c_void_p)
    for function in (kernels.library.gluon_gc_advance, kernels.library.gluon_gc_await)
)
_start, _end = kernels.library.gluon_gc_watcher, kernels.library.gluon_gc_watcher_end
_start.restype, _start.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
_end.restype, _end.argtypes = None, (ctypes.c_void_p,)


class _Advance(ctypes.Structure):
    _fields_ = [("count", ctypes.c_void_p), ("bells", ctypes.c_void_p), ("number", ctypes.c_uint32)]


class _Await(ctypes.Structure):
    _fields_ = [
        ("watcher", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("each", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
    ]


class Watcher:
    """A thread that sleeps on this process's bell: one of the `bells`, uint32, in shared memory."""

    def __init__(self, bells: np.ndarray, rank: int) -> None:
        self.bells = bells
        self.handle = _start(bells[rank:].ctypes.data)

    def end(self) -> None:
        """End the thread. No wait may be pending."""
        _end(self.handle)
        self.handle = None


class Eventcount:
    """A uint32 in shared memory that some processes advance by one, and others wait for."""

    def __init__(self, watcher: Watcher, count: np.ndarray, each: int, awaited_by: slice) -> None:
        bells = watcher.bells[awaited_by]
        self._kept = watcher, count, bells
        self._advance = _Advance(count.ctypes.data, bells.ctypes.data, bells.size)
        self._await = _Await(watcher.handle, count.ctypes.data, each, 0)

    def advance(self, read: Sequence[NDArray] = (), written: Sequence[NDArray] = ()) -> None:
        """Advance it once all queued operators have written `read`, and finished with `written`."""
        push(_LIB.MXEnginePushSyncND, _ADVANCE, ctypes.byref(self._advance), read, written)

    def wait(self, written: Sequence[NDArray]) -> None:
        """Make later operators on these arrays wait for `each` more advances."""
        awaited = ctypes.byref(self._await)
        push(_LIB.MXEnginePushAsyncND, _AWAIT, awaited, (), written, False)

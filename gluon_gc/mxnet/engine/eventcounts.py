"""Eventcounts (Reed and Kanodia 1979): shared counters that MXNet's engine advances and awaits.

operators/mxnet/eventcounts.cpp implements them. Waiting occupies no thread of the engine, and no
Python thread.
"""

from __future__ import annotations

import ctypes
from typing import Sequence

import numpy as np
from mxnet.base import _LIB
from mxnet.ndarray import NDArray

from ...kernels import library
from .order import push

_ADVANCE, _AWAIT = (
    ctypes.cast(function, ctypes.c_void_p)
    for function in (library.gluon_gc_advance, library.gluon_gc_await)
)
_start, _end = library.gluon_gc_watcher, library.gluon_gc_watcher_end
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
    """A thread that watches the counters for which this process waits.

    Parameters
    ----------
    bells : ndarray
        One bell for each process, uint32, initially zero, in shared memory.
    place : int
        The index of this process's bell.
    """

    def __init__(self, bells: np.ndarray, place: int) -> None:
        self.bells = bells
        self.handle = _start(bells[place:].ctypes.data)

    def end(self) -> None:
        """End the thread. No wait may be pending."""
        _end(self.handle)
        self.handle = None


class Eventcount:
    """A counter that some processes advance by one, and others wait for.

    Parameters
    ----------
    watcher : Watcher
    count : ndarray
        uint32, shape (1,), initially zero, in shared memory.
    each : int
        The number of advances from one `wait` to the next.
    awaited_by : slice
        The indices of the processes that wait for it.
    """

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

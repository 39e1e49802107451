"""NDArrays in the memory of NumPy arrays, for example memory that processes share."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray.ndarray import DeleterFunc, DLContext, DLDataType, DLManagedTensor

from ... import kernels

_CPU = DLContext(1, 0)
_GIVE_BACK = ctypes.cast(kernels.library.gluon_gc_give_back, DeleterFunc)


def as_ndarray(memory: np.ndarray) -> NDArray:
    """An NDArray that shares the memory of a NumPy array, and keeps it alive.

    MXNet's own `from_numpy` calls Python when the array is freed. That crashes a process if the
    array outlives Python's modules.
    """
    assert memory.flags.c_contiguous
    managed = DLManagedTensor()
    managed.dl_tensor.data = memory.ctypes.data
    managed.dl_tensor.ctx = _CPU
    managed.dl_tensor.ndim = memory.ndim
    managed.dl_tensor.dtype = DLDataType.TYPE_MAP[memory.dtype.name]
    managed.dl_tensor.shape = memory.ctypes.shape_as(ctypes.c_int64)
    owner: Any = ctypes.py_object(memory)
    managed.manager_ctx = id(memory)
    managed.deleter = _GIVE_BACK
    ctypes.pythonapi.Py_IncRef(owner)
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArrayFromDLPackEx(ctypes.byref(managed), True, ctypes.byref(handle)))
    return NDArray(handle=handle)

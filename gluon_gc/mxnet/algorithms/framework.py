"""MXNet's side of `algorithms.framework.Framework`."""

from __future__ import annotations

import ctypes
from typing import Iterable

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call
from mxnet.ndarray import NDArray

from ... import env


class MXNet:
    """Functions of MXNet for algorithms."""

    @property
    def threads(self) -> int:
        """The number of threads for computations on the CPU."""
        return env.server_threads()

    def in_host_memory(self, array: NDArray) -> bool:
        """Whether an array is in the memory of the CPU."""
        return array.context.device_type != "gpu"

    def to_numpy(self, array: NDArray) -> np.ndarray:
        """The values as a NumPy array. It shares the memory of an array on the CPU.

        This waits until MXNet's engine has finished all operations on the array. The NumPy array is
        valid while the NDArray exists, and until the next operation on it.
        """
        if not self.in_host_memory(array):
            return array.asnumpy()
        check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
        element = np.ctypeslib.as_ctypes_type(array.dtype)
        memory = (element * array.size).from_address(address.value)
        return np.ctypeslib.as_array(memory).reshape(array.shape)

    def from_numpy(self, values: np.ndarray, like: NDArray) -> NDArray:
        """A new array with these values on the device of `like`."""
        return mx.nd.array(values, ctx=like.context, dtype=values.dtype)

    def multiply(self, a: NDArray, b: NDArray) -> NDArray:
        """The product of two matrices."""
        return mx.nd.dot(a, b)

    def wait(self, arrays: Iterable[NDArray]) -> None:
        """Wait until arrays are computed, and raise the first error.

        MXNet's engine forgets an error when it raises it, so this waits for all arrays.
        """
        errors = []
        for array in arrays:
            try:
                array.wait_to_read()
            except MXNetError as error:
                errors.append(error)
        if errors:
            raise errors[0]

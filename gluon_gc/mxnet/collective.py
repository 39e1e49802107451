"""What all workers do together beside training: meet, and sum up metrics."""

from __future__ import annotations

import numbers
from typing import TypeVar

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .runtime import default_kvstore
from .totals import total

Value = TypeVar("Value", float, np.ndarray, NDArray)


def barrier() -> None:
    """Return when all workers have come here.

    What is queued on MXNet's engine goes on meanwhile; `mx.nd.waitall` waits for it.

    Raises
    ------
    RuntimeError
        `init` was not called; or a worker is about to do something else together.
    """
    default_kvstore().meet("collective", "barrier")


def allreduce(value: Value, average: bool = True) -> Value:
    """The average or sum of a metric over all workers, the same on all; waits for it.

    It is computed in float64. Where workers have different numbers of samples, sum up both::

        right, count = bps.allreduce(np.array([right, count]), average=False)

    Parameters
    ----------
    value : int, float, ndarray or NDArray
        Of the same shape on all workers; not changed.
    average : bool
        Average if true, else sum.

    Returns
    -------
    As given: a Python number, or a new array of the same shape and dtype, on the same device. The
    average of integers is float, or float64.

    Raises
    ------
    TypeError
        The value is not one of numbers.
    RuntimeError
        `init` was not called; or a worker has another shape, or is about to do something else.
    """
    given = _as_numpy(value)
    store = default_kvstore()
    store.meet("collective", ["allreduce", list(given.shape), bool(average)])
    array = mx.nd.array(given.reshape(-1), dtype="float64")
    result = total(store, f"metrics.{given.size}", array).asnumpy().reshape(given.shape)
    if average:
        result = result / store.num_workers
    floating = average and given.dtype.kind != "f"
    return _like(value, result.astype(np.float64 if floating else given.dtype))


def _as_numpy(value: Value) -> np.ndarray:
    if not isinstance(value, (numbers.Real, np.ndarray, NDArray)):
        kind = type(value).__name__
        raise TypeError(f"value must be a number, an ndarray or an NDArray, got {value!r} ({kind})")
    given = value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"value must have integers or floats, got {value!r} ({given.dtype})")
    return given


def _like(value: Value, result: np.ndarray) -> Value:
    """The result in the form of the value."""
    if isinstance(value, NDArray):
        array = mx.np.array if isinstance(value, mx.np.ndarray) else mx.nd.array
        return array(result, ctx=value.context, dtype=result.dtype)
    return result if isinstance(value, np.ndarray) else result.item()

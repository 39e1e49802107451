"""Collective calls besides training: barrier, averages of metrics and of running statistics."""

from __future__ import annotations

import numbers
from typing import Mapping, Sequence, TypeVar

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, ParameterDict
from mxnet.ndarray import NDArray

from ...kernels import integers
from ..exchange.gradient import legacy
from ..trainer.parameters import is_statistic
from .runtime import default_exchange

Value = TypeVar("Value", float, np.ndarray, NDArray)


def barrier() -> None:
    """Return when all workers have called it.

    It does not wait for operators on MXNet's engine; `mx.nd.waitall` does.

    Raises
    ------
    RuntimeError
        `init` was not called, or another worker makes another collective call.
    """
    default_exchange().agree("barrier")


def allreduce(value: Value, average: bool = True) -> Value:
    """The average or sum of a metric over all workers, the same on all workers; waits for it.

    The average is computed in float64. The sum of integers is exact. If the workers have different
    numbers of samples, sum the metric and the count::

        right, count = bps.allreduce(np.array([right, count]), average=False)

    Parameters
    ----------
    value : int, float, ndarray or NDArray
        The same shape on all workers; not changed.
    average : bool
        Whether to average instead of sum.

    Returns
    -------
    A Python number, or a new array of the same shape, dtype and device as `value`. The average of
    integers is a float, or float64. If this worker has an integer and another has a float, their
    sum is a float.

    Raises
    ------
    TypeError
        The value does not consist of numbers.
    OverflowError
        The sum of integers does not fit their dtype, or 64 bits. All workers raise it.
    RuntimeError
        `init` was not called; or another worker has another shape, or makes another call of this
        module. A worker that steps meanwhile is waited for, at most for GLUON_GC_TIMEOUT.
    """
    array = _as_numpy(value)
    exchange = default_exchange()
    parts = _summands(array)
    facts = {
        "shape": list(array.shape),
        "average": bool(average),
        "64-bit integers": len(parts) > 1,
    }
    exchange.agree("allreduce", [("", facts)])
    sums = exchange.total_of_parts(f"metrics.{array.size}.{len(parts)}", parts, "allreduce")
    floats = integers.as_floats(sums)
    if average:
        floats = floats / exchange.num_workers
    whole = array.dtype.kind != "f" and not average and bool((floats % 1 == 0).all())
    if whole:
        return _like(value, integers.total(sums, array.dtype, "the values"))
    return _like(value, floats.astype(array.dtype if array.dtype.kind == "f" else np.float64))


def average_statistics(
    net: Block | ParameterDict | Mapping[str, Parameter] | Sequence[Parameter],
) -> None:
    """Average the running statistics of a network over all contexts of all workers.

    Each context updates the running means and variances of BatchNorm layers from its own batches,
    and training steps do not exchange them. Call this on all workers before you validate or save.
    The workers wait for each other.

    Parameters
    ----------
    net : Block, ParameterDict, dict or list
        A network or its Parameters. A parameter is averaged if it was made with
        differentiable=False, as by BatchNorm and SyncBatchNorm, or if its name is that of a running
        mean or variance, as in a SymbolBlock. Constants, integers and uninitialized parameters do
        not change.

    Raises
    ------
    TypeError
        `net` is none of these.
    RuntimeError
        `init` was not called; or another worker has other statistics, or makes another call of
        this module. A worker that steps meanwhile is waited for, at most for GLUON_GC_TIMEOUT.
    """
    statistics = [param for param in _parameters(net) if is_statistic(param)]
    exchange = default_exchange()
    arrays = [legacy(param.list_data()) for param in statistics]
    facts = [
        (f"parameter {param.name}", {"shape": list(first.shape)})
        for param, (first, *_) in zip(statistics, arrays)
    ]
    exchange.agree("average_statistics", facts)
    if not statistics:
        return
    means = np.concatenate([_mean(copies) for copies in arrays])
    (sums,) = exchange.total_of_parts(f"statistics.{means.size}", [means], "average_statistics")
    ends = np.cumsum([copies[0].size for copies in arrays])[:-1]
    for copies, values in zip(arrays, np.split(sums / exchange.num_workers, ends)):
        for array in copies:
            array[:] = mx.nd.array(values.reshape(array.shape), dtype=array.dtype)


def _summands(array: np.ndarray) -> list[np.ndarray]:
    """The float64 arrays to sum: of a single number always two, whether float or integer."""
    if array.dtype.kind != "f":
        array = array if array.ndim else array.astype(np.int64)
        return integers.summands(array)
    values = array.astype(np.float64)
    return [values] if array.ndim else [np.zeros_like(values), values]


def _as_numpy(value: Value) -> np.ndarray:
    if not isinstance(value, (numbers.Real, np.ndarray, NDArray)):
        kind = type(value).__name__
        raise TypeError(f"value must be a number, an ndarray or an NDArray, got {value!r} ({kind})")
    array = value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"value must have integers or floats, got {value!r} ({array.dtype})")
    return array


def _like(value: Value, result: np.ndarray) -> Value:
    """The result in the form of the value: a number, an ndarray or an NDArray."""
    if isinstance(value, NDArray):
        array = mx.np.array if isinstance(value, mx.np.ndarray) else mx.nd.array
        return array(result, ctx=value.context, dtype=result.dtype)
    return result if isinstance(value, np.ndarray) else result.item()


def _parameters(net: object) -> list[Parameter]:
    if isinstance(net, Block):
        net = net.collect_params()
    if isinstance(net, (Mapping, ParameterDict)):
        net = list(net.values())
    if not isinstance(net, (list, tuple)) or not all(isinstance(p, Parameter) for p in net):
        raise TypeError(
            f"net must be a Block, or a ParameterDict, dict or list of Parameters, got {net!r}"
        )
    return list(net)


def _mean(copies: Sequence[NDArray]) -> np.ndarray:
    return np.mean([array.asnumpy().astype(np.float64).ravel() for array in copies], axis=0)

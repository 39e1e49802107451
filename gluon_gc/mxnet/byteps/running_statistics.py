"""Averages the running statistics of layers such as BatchNorm over all workers."""

from __future__ import annotations

from typing import List, Mapping, Sequence, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Constant, Parameter, ParameterDict
from mxnet.ndarray import NDArray

from ..exchange.gradient import legacy
from ..exchange.totals import total_of_parts
from .runtime import default_exchange

_STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_var")
"""Name endings of statistics: a network that is loaded from a file does not mark them otherwise."""
_FIXED = ("gamma", "beta")
"""Name endings of parameters that BatchNorm(scale=False, center=False) marks like statistics."""


def average_statistics(
    net: Union[Block, ParameterDict, Mapping[str, Parameter], Sequence[Parameter]],
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
        `init` was not called; or another worker has other statistics, or makes another call.
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
    (sums,) = total_of_parts(exchange, f"statistics.{means.size}", [means], "average_statistics")
    ends = np.cumsum([copies[0].size for copies in arrays])[:-1]
    for copies, values in zip(arrays, np.split(sums / exchange.num_workers, ends)):
        for array in copies:
            array[:] = mx.nd.array(values.reshape(array.shape), dtype=array.dtype)


def _parameters(net: object) -> List[Parameter]:
    if isinstance(net, Block):
        net = net.collect_params()
    if isinstance(net, (Mapping, ParameterDict)):
        net = list(net.values())
    if not isinstance(net, (list, tuple)) or not all(isinstance(p, Parameter) for p in net):
        raise TypeError(
            f"net must be a Block, or a ParameterDict, dict or list of Parameters, got {net!r}"
        )
    return list(net)


def is_statistic(param: Parameter) -> bool:
    """Whether a parameter is a running statistic, which is initialized."""
    if isinstance(param, Constant) or param._data is None or np.dtype(param.dtype).kind != "f":
        return False
    fixed = param._differentiable or param.name.endswith(_FIXED)
    return not fixed or param.name.endswith(_STATISTICS)


def _mean(copies: Sequence[NDArray]) -> np.ndarray:
    """The mean over contexts, float64, flat."""
    return np.mean([array.asnumpy().astype(np.float64).ravel() for array in copies], axis=0)

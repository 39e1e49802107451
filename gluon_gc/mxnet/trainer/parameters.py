"""The parameters of a trainer: gradients, compression, order, and copies on contexts."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import Constant, Parameter, ParameterDict
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from ...algorithms import Algorithm
from ...algorithms.requirements import require_fitting_compression
from ...compression import CompressionParams, byteps
from ...compression.momentum import has_nesterov
from ...exchange.plan import Tensor, params_for_dimensions
from ..exchange.gradient import copy_first, legacy, params_for
from .momentum import Momentum, require_outside

Parameters = Union[ParameterDict, Mapping[str, Parameter], Sequence[Parameter]]
OptimizerInfo = Tuple[Optional[float], bool, str]
"""An optimizer's momentum, whether it is Nesterov momentum, and the optimizer's name."""
_STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_var")
"""Name endings of statistics: a network that is loaded from a file does not mark them otherwise."""
_FIXED = ("gamma", "beta")
"""Name endings of parameters that BatchNorm(scale=False, center=False) marks like statistics."""


def in_order_of_backward(params: Sequence[Parameter], given: Parameters) -> list[int]:
    """The indices of the parameters in the order of backward: the last layer first.

    gluon.Trainer sorts its parameters by name, so the order comes from `given`. A gradient that is
    ready late would delay those behind it in the queue.
    """
    in_order = list(given.values() if hasattr(given, "values") else given)
    position = {id(param): number for number, param in enumerate(in_order)}
    return sorted(range(len(params)), key=lambda i: -position[id(params[i])])


def tensor_of(
    name: str, param: Parameter, index: int, given: CompressionParams, on_nonfinite: str
) -> Tensor:
    """A parameter's gradient as a `Tensor` of the plan."""
    gradient = gradient_of(param)
    params = params_for(gradient, given)
    stype = gradient.stype
    in_rows = stype == "row_sparse" and gradient.dtype == np.float32 and gradient.ndim == 2
    if in_rows:
        params = params.of_rows
    elif stype != "default":
        params = CompressionParams(fp16=params.fp16)
    else:
        params = params_for_dimensions(params, len(gradient.shape))
    return Tensor(
        name,
        int(np.prod(gradient.shape)),
        np.dtype(gradient.dtype).name,
        params,
        index=index,
        called=f"the gradient of {param.name}",
        on_nonfinite=on_nonfinite,
        rows=gradient.shape[0] if in_rows else 0,
    )


def gradient_of(param: Parameter) -> NDArray:
    """A parameter's gradient on its first context; zeros if the parameter is frozen."""
    if param.grad_req != "null":
        return param.list_grad()[0]
    data = param.list_data()[0]
    return mx.nd.zeros(data.shape, data.context, data.dtype, stype=param._grad_stype)


def first_copy(param: Parameter) -> NDArray:
    """A parameter's array on its first context."""
    return legacy(param.list_data()[:1])[0]


def broadcast_to_contexts(params: Iterable[Parameter]) -> None:
    for param in params:
        copy_first(param.list_data())


def is_statistic(param: Parameter) -> bool:
    """Whether a parameter is a running statistic, which is initialized."""
    if isinstance(param, Constant) or param._data is None or np.dtype(param.dtype).kind != "f":
        return False
    fixed = param._differentiable or param.name.endswith(_FIXED)
    return not fixed or param.name.endswith(_STATISTICS)


class Compressions:
    """The compression_params of a trainer, and those of single parameters, which override them."""

    def __init__(
        self,
        given: Mapping[str, Any] | None,
        default: CompressionParams,
        params: Sequence[Parameter],
        optimizer_info: OptimizerInfo,
        algorithm: Algorithm | None = None,
    ) -> None:
        spelled = {i: byteps.of_parameter(param, given) for i, param in enumerate(params)}
        own_params = {i: found for i, found in spelled.items() if found is not None}
        self.written = [given, *(found.params for found in own_params.values())]
        if algorithm is not None:
            require_fitting_compression(algorithm, *self.written)
        self.default, self._optimizer_info = default, optimizer_info
        self._parsed = {i: found.parse(*optimizer_info) for i, found in own_params.items()}
        for params in (default, *self._parsed.values()):
            params.require_no_inner()

    def momentum(self, optimizer: Optimizer) -> Momentum | None:
        """The momentum to apply outside the optimizer; None if no compressor applies momentum."""
        mu, *_ = self._optimizer_info
        compressors = (self.default, *self._parsed.values())
        if mu is None or all(params.mu is None for params in compressors):
            return None
        require_outside(optimizer, mu)
        return Momentum(mu, self._nesterov)

    def of(self, index: int) -> CompressionParams:
        return self._parsed.get(index, self.default)

    def _nesterov(self, index: int) -> bool:
        _, optimizer_nesterov, _ = self._optimizer_info
        return has_nesterov(self._parsed.get(index), self.default, optimizer_nesterov)

"""The parameters of a trainer: their gradients, their order, and their copies on contexts."""

from __future__ import annotations

from typing import Iterable, List, Mapping, Sequence, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from ...compression import CompressionParams
from ...plan import Tensor, params_for_dimensions
from ..exchange.gradient import legacy, params_for

Parameters = Union[ParameterDict, Mapping[str, Parameter], Sequence[Parameter]]


def in_order_of_backward(params: Sequence[Parameter], given: Parameters) -> List[int]:
    """The indices of the parameters in the order of backward: the last layer first.

    gluon.Trainer sorts its parameters by name, so this order comes from `given`. Exchanges queue up
    in this order, so a gradient that is ready late would delay those behind it.
    """
    in_order = list(given.values() if hasattr(given, "values") else given)
    place = {id(param): number for number, param in enumerate(in_order)}
    return sorted(range(len(params)), key=lambda i: -place[id(params[i])])


def tensor_of(
    name: str, param: Parameter, index: int, given: CompressionParams, on_nonfinite: str
) -> Tensor:
    """A parameter's gradient as a `Tensor` of the plan.

    Parameters
    ----------
    name : str
        The tensor's name in the exchange.
    param : Parameter
        Initialized. It may be frozen.
    index : int
        The parameter's index in the trainer.
    given : CompressionParams
        The requested compression. The gradient's device, storage type and shape may restrict it.
    on_nonfinite : str
    """
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


def spread(params: Iterable[Parameter]) -> None:
    """Copy each parameter's array on the first context to its other contexts."""
    for param in params:
        first, *others = legacy(param.list_data())
        for other in others:
            first.copyto(other)

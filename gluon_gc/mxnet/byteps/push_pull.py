"""byteps_push_pull and broadcast_parameters: exchanges of single tensors, as in byteps.mxnet."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Mapping, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from ...compression import CompressionParams, byteps, warn_of_ignored
from ...exchange.agreement import Facts
from ...exchange.plan import Tensor, require_on_nonfinite
from ...kernels import integers
from ..exchange.channels import check_fits
from ..exchange.exchange import Exchange
from ..exchange.gradient import legacy, params_for
from . import runtime


class _Declared(NamedTuple):
    """The arguments of `byteps_declare_tensor`, parsed."""

    params: CompressionParams = CompressionParams()
    on_nonfinite: str | None = None


_CALL = "byteps_push_pull"
_declared: dict[str, _Declared] = {}
_used: dict[str, Tensor] = {}  # by name, as the first exchange described them
_nameless = itertools.count(1)  # numbers the calls without a name


def _forget() -> None:
    """Reset this module, because the process has left its cluster."""
    global _nameless
    _used.clear()
    _nameless = itertools.count(1)


runtime.when_left.append(_forget)
runtime.when_shut_down.append(_declared.clear)


def byteps_declare_tensor(
    name: str, on_nonfinite: str | None = None, **compression_params: Any
) -> None:
    """Declare a tensor that `byteps_push_pull` will exchange.

    Parameters
    ----------
    name : str
        The tensor's name, the same on all workers. All workers must declare their tensors in the
        same order. Declarations last until `shutdown`.
    on_nonfinite : None, "raise", "skip" or "propagate"
        What happens if the tensor has a NaN or an infinity on any worker, as in
        `DistributedTrainer`. With "skip" the result is zeros, on all workers. None: "raise" if the
        tensor is compressed, else "propagate".
    **compression_params
        As in `DistributedTrainer`, or in BytePS's spelling, such as byteps_compressor_type
        (`gluon_gc.compression.byteps`). Momentum needs byteps_momentum_mu.

    Raises
    ------
    ValueError, TypeError, KeyError
        An option is wrong. The compressor "auto" and the error feedback "corrected" and "sparse"
        are wrong too, because they need all gradients of a step, or the learning rate.
    """
    spelled = byteps.translate(compression_params)
    params = spelled.parse().require_chosen().require_no_optimizer().require_no_inner()
    if on_nonfinite is not None:
        require_on_nonfinite(on_nonfinite)
    warn_of_ignored(spelled.params)
    _declared.setdefault(name, _Declared(params, on_nonfinite))


def byteps_push_pull(
    tensor: NDArray,
    version: int = 0,
    priority: int = 0,
    name: str | None = None,
    is_average: bool = True,
) -> None:
    """Replace `tensor` by its sum or average over all workers.

    The call returns at once if the tensor has floats. It waits for the sum of integers.

    Parameters
    ----------
    tensor : NDArray
        Any shape, floats or integers. All tensors of one name have the same number of elements and
        dtype. A sparse tensor is sent as a dense one.
    version : int
        Ignored, as in BytePS.
    priority : int
        Tensors with a higher priority are sent first.
    name : str, optional
        The tensor's name, the same on all workers. Each call without a name makes a new tensor,
        "noname.1" and so on in the order of the calls, and keeps memory for it. So name tensors
        that are exchanged repeatedly.
    is_average : bool
        Whether to average instead of sum; the same on all workers. The average of integers is
        rounded towards 0.

    Raises
    ------
    TypeError
        The tensor is not an NDArray of floats or integers.
    ValueError
        The name was used with another number of elements or another dtype.
    OverflowError
        The sum of integers does not fit their dtype. All workers raise it.
    RuntimeError
        Workers use the names in different orders, or differ in `is_average`.
    MXNetError
        The result is not finite, and on_nonfinite is "raise". It is raised when the result is
        waited for.
    """
    exchange = runtime.default_exchange()
    if name is None:
        name = f"noname.{next(_nameless)}"
    _require_numbers(tensor, name)
    if tensor.stype != "default":
        dense = tensor.tostype("default")
        byteps_push_pull(dense, version, priority, name, is_average)
        dense.tostype(tensor.stype).copyto(tensor)
        return
    declared, average = _declared.get(name, _Declared()), bool(is_average)
    # Sums and averages have different keys, so workers that disagree do not mix them.
    key = f"byteps.{name}" if average else f"byteps.{name}.sum"
    described = _used.setdefault(name, _described(tensor, name, declared))
    check_fits([tensor], described)
    values = {"name": name, "is_average": average, "dtype": described.dtype}
    about = [(_CALL, values)]
    if not described.floating:
        _push_pull_integers(exchange, key, tensor, described.called, average, about)
        return
    if not exchange.declared(key):
        exchange.declare([replace(described, name=key)], about=about, call=_CALL)
    scale = 1.0 / exchange.num_workers if average else 1.0
    exchange.sum_in_place({key: tensor}, scale, priority)
    if declared.on_nonfinite == "skip":
        _make_zero_unless_finite(*legacy([tensor]))


def _require_numbers(tensor: Any, name: str) -> None:
    if not isinstance(tensor, NDArray):
        raise TypeError(
            f"tensor '{name}' must be an NDArray, got {tensor!r} ({type(tensor).__name__}); "
            "bps.allreduce takes Python's numbers and NumPy's arrays"
        )
    dtype = np.dtype(tensor.dtype)
    if dtype.kind not in "fiu":
        raise TypeError(
            f"tensor '{name}' must have floats or integers, got {dtype.name}: cast it, as with "
            "tensor.astype('float32')"
        )


def _described(tensor: NDArray, name: str, declared: _Declared) -> Tensor:
    params = params_for(tensor, declared.params)
    otherwise = "propagate" if params.compressor is None else "raise"
    return Tensor(
        name,
        tensor.size,
        np.dtype(tensor.dtype).name,
        params,
        called=f"tensor '{name}'",
        on_nonfinite=declared.on_nonfinite or otherwise,
    )


def _push_pull_integers(
    exchange: Exchange,
    key: str,
    tensor: NDArray,
    called: str,
    average: bool,
    about: Facts,
) -> None:
    """Replace integers by their exact sum or average; waits for it."""
    values = tensor.asnumpy()
    sums = exchange.total_of_parts(key, integers.summands(values), _CALL, about)
    if average:
        result = integers.average(sums, exchange.num_workers, values.dtype)
    else:
        result = integers.total(sums, values.dtype, called)
    (array,) = legacy([tensor])
    array[:] = mx.nd.array(result.reshape(array.shape), dtype=result.dtype)


def _make_zero_unless_finite(tensor: NDArray) -> None:
    finite = mx.nd.multi_all_finite(tensor, num_arrays=1)
    row = tensor.reshape((1, -1))
    mx.nd.where(finite, row, mx.nd.zeros_like(row), out=row)


def broadcast_parameters(
    params: ParameterDict | Mapping[str, Any] | Sequence[Any], root_rank: int = 0
) -> None:
    """Overwrite parameters on all workers with those of one worker, bit for bit.

    Parameters
    ----------
    params : ParameterDict, dict or list
        Initialized Parameters or NDArrays, the same on all workers.
    root_rank : int
        The worker whose values are sent.

    Raises
    ------
    TypeError
        An item is neither a Parameter nor an NDArray. Nothing was sent.
    RuntimeError
        The workers have different parameters, or another root_rank.
    """
    exchange = runtime.default_exchange()
    if isinstance(params, (dict, ParameterDict)):
        named = [(f"params[{name!r}]", params[name]) for name in sorted(params.keys())]
    elif isinstance(params, (list, tuple)):
        named = [(f"params[{number}]", value) for number, value in enumerate(params)]
    else:
        raise TypeError(
            f"params must be a ParameterDict, a dict or a list, got {type(params).__name__}"
        )
    copies = [(name, _copies(name, value)) for name, value in named]
    exchange.broadcast_copies(copies, root_rank)


def _copies(called: str, value: Any) -> list[NDArray]:
    if isinstance(value, Parameter):
        return value.list_data()
    if isinstance(value, NDArray):
        return [value]
    raise TypeError(f"{called} must be a Parameter or an NDArray, got {type(value).__name__}")

"""Checks the arguments of a trainer and of its methods."""

from __future__ import annotations

import numbers
import warnings
from typing import Any, Mapping, Optional, Tuple, Union

import mxnet as mx
from mxnet.gluon import Parameter, Trainer
from mxnet.optimizer import Optimizer

from ..byteps.optimizer import DistributedOptimizer
from .parameters import Parameters

OptimizerParams = Optional[Mapping[str, Any]]


def require_positive(name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless a value is a positive, finite number."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}")


def require_update_on_workers(update_on_kvstore: Optional[bool]) -> None:
    """Raise ValueError if the optimizer is to run in a KVStore."""
    if update_on_kvstore:
        raise ValueError(
            f"update_on_kvstore must be None or False, got {update_on_kvstore!r}: the "
            "optimizer runs on the workers, and servers only sum"
        )


def as_optimizer(
    given: Union[str, Optimizer], params: OptimizerParams
) -> Tuple[Optimizer, OptimizerParams]:
    """The optimizer that a trainer was given, and the optimizer_params that are still to be set.

    Raises
    ------
    TypeError
        It is neither an Optimizer nor a name.
    """
    if isinstance(given, DistributedOptimizer):
        warning = (
            "DistributedTrainer averages gradients itself: it unwraps the DistributedOptimizer"
        )
        warnings.warn(warning, stacklevel=3)
        return given.unwrapped, params
    if isinstance(given, Optimizer):
        return given, params
    if not isinstance(given, str):
        hint = ": pass its optimizer's name and settings" if isinstance(given, Trainer) else ""
        raise TypeError(
            f"optimizer must be a name or an mxnet Optimizer, got {type(given).__name__}{hint}"
        )
    return mx.optimizer.create(given, **(params or {})), None


def require_dense_weights(params: Parameters) -> None:
    """Raise ValueError if a parameter is row_sparse or bfloat16, which cannot be broadcast."""
    given = params.values() if hasattr(params, "values") else params
    for param in filter(lambda param: isinstance(param, Parameter), given):
        if param._stype != "default":
            raise ValueError(
                f"parameter {param.name} must have dense weights, got stype '{param._stype}': only "
                "its gradient may be row_sparse (grad_stype, or sparse_grad of Embedding)"
            )
        if "bfloat16" in str(param.dtype):
            raise ValueError(
                f"parameter {param.name} must be float32, float16 or float64, got bfloat16: cast "
                "the network before DistributedTrainer"
            )

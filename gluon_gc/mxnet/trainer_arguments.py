"""Checks the arguments of a trainer and of its methods."""

from __future__ import annotations

import numbers
import warnings
from typing import Any, Mapping, Optional, Tuple, Union

import mxnet as mx
from mxnet.optimizer import Optimizer

from .optimizer import DistributedOptimizer

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
    """The optimizer that a trainer was given, and the optimizer_params that are still to be set."""
    if isinstance(given, DistributedOptimizer):
        warning = (
            "DistributedTrainer averages gradients itself: it unwraps the DistributedOptimizer"
        )
        warnings.warn(warning, stacklevel=3)
        return given.unwrapped, params
    if isinstance(given, Optimizer):
        return given, params
    return mx.optimizer.create(given, **(params or {})), None

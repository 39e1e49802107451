"""Which arguments and parameters of a trainer go with an algorithm."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

import numpy as np
from mxnet.gluon import Parameter

from ..algorithms import Algorithm, parse
from ..compression.params import AUTO


def checked(
    algorithm: Any, on_nonfinite: str, max_grad_norm: Optional[float], compression_params: Any
) -> Optional[Algorithm]:
    """The argument `algorithm` of a trainer, checked; ValueError if another argument does not fit.

    The parameters are those of `DistributedTrainer`.
    """
    parsed = parse(algorithm)
    if parsed is None:
        return None
    if on_nonfinite == "skip":
        raise ValueError(
            f"on_nonfinite must be 'raise' or 'propagate' with algorithm {parsed.name}, got "
            "'skip': the workers do not meet in every step, and cannot leave one out together"
        )
    if max_grad_norm is not None:
        raise ValueError(
            f"max_grad_norm must be None with algorithm {parsed.name}, got {max_grad_norm!r}: clip "
            "this worker's gradients before trainer.step, as with gluon.utils.clip_global_norm"
        )
    require_fitting_compression(parsed.name, compression_params)
    return parsed


def require_fitting_compression(name: str, *compressions: Any) -> None:
    """Raise ValueError if any compression_params are only for gradients."""
    for params in compressions:
        if not isinstance(params, Mapping):
            continue
        if params.get("momentum"):
            raise ValueError(
                f"compression_params['momentum'] must be left out with algorithm {name}, got "
                f"{params['momentum']!r}: the optimizer applies its momentum itself"
            )
        if params.get("compressor") == AUTO:
            raise ValueError(
                f"compression_params['compressor'] must name a compressor with algorithm {name}, "
                f"got '{AUTO}', which chooses for gradients that travel in every step"
            )


def require_dense_floats(name: str, params: Iterable[Parameter]) -> None:
    """Raise ValueError if an algorithm cannot average a parameter."""
    for param in params:
        if param.grad_req == "null":
            continue
        if param._stype != "default" or param._grad_stype != "default":
            raise ValueError(
                f"algorithm {name} needs dense parameters, but parameter {param.name} or its "
                "gradient is row_sparse: make it without sparse_grad, or leave out algorithm"
            )
        dtype = np.dtype(param.dtype).name
        if dtype not in ("float32", "float64"):
            raise ValueError(
                f"algorithm {name} needs parameters of float32 or float64, but parameter "
                f"{param.name} is {dtype}: cast the network, or leave out algorithm"
            )

"""Checks that a trainer's arguments and parameters fit its algorithm."""

from __future__ import annotations

from typing import Any, Collection, Optional

import numpy as np
from mxnet.gluon import Parameter

from ...algorithms import Algorithm, parse
from ...algorithms.requirements import (
    require_fitting_compression,
    require_floats,
    require_on_nonfinite,
)
from ...options import require_different


def checked(
    algorithm: Any, on_nonfinite: str, max_grad_norm: Optional[float], compression_params: Any
) -> Optional[Algorithm]:
    """The trainer's argument `algorithm`, parsed; None: no algorithm.

    The parameters are those of `DistributedTrainer`.

    Raises
    ------
    ValueError
        Another argument does not fit the algorithm.
    """
    parsed = parse(algorithm)
    if parsed is None:
        return None
    require_on_nonfinite(parsed, on_nonfinite, ("raise", "propagate"))
    if max_grad_norm is not None:
        raise ValueError(
            f"max_grad_norm must be None with algorithm {parsed.name}, got {max_grad_norm!r}: clip "
            "this worker's gradients before trainer.step, as with gluon.utils.clip_global_norm"
        )
    require_fitting_compression(parsed, compression_params)
    return parsed


def require_parameters(name: str, params: Collection[Parameter]) -> None:
    """Raise ValueError if two parameters have one name, or if an algorithm cannot average one."""
    subject = f"algorithm {name} needs a name for each parameter, but params"
    require_different((param.name for param in params), subject)
    for param in params:
        if param.grad_req == "null":
            continue
        if param._stype != "default" or param._grad_stype != "default":
            raise ValueError(
                f"algorithm {name} needs dense parameters, but parameter {param.name} or its "
                "gradient is row_sparse: make it without sparse_grad, or leave out algorithm"
            )
        require_floats(name, param.name, np.dtype(param.dtype).name)

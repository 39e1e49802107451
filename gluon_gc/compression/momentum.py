"""Checks for momentum that is applied before compression, instead of by the optimizer.

Compressing after momentum follows Zheng et al., "Communication-Efficient Distributed Blockwise
Momentum SGD with Error-Feedback" (dist-EF-SGDM), NeurIPS 2019. On each worker, before the residual
is added:

    m = mu m + g
    g = g + mu m
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from ..log import warn_once
from ..options import listed
from .params import CompressionParams


def has_nesterov(
    own: Optional[CompressionParams], of_all: CompressionParams, of_optimizer: bool
) -> bool:
    """Whether a parameter has Nesterov's momentum, rather than classic momentum.

    If compression applies the momentum of one parameter, it applies that of all parameters of the
    optimizer. The form is decided by the parameter's own params, then by those of all parameters,
    then by the optimizer.
    """
    for params in (own, of_all):
        if params is not None and params.mu is not None:
            return params.nesterov
    return of_optimizer


def require_linear(optimizer: Any, linear: Sequence[type]) -> None:
    """Raise ValueError unless momentum may be applied before compression with this optimizer.

    The result is the same as in the optimizer only if the update is linear in the gradient, as that
    of the types `linear` is. For a subclass from elsewhere, one warning is logged.
    """
    kinds = [
        kind for kind in type(optimizer).__mro__ if kind.__module__.partition(".")[0] != "gluon_gc"
    ]
    names = listed([kind.__name__ for kind in linear], "and")
    if not isinstance(optimizer, tuple(linear)):
        raise ValueError(
            f"compression can apply the momentum of {names}, but not that of "
            f"{kinds[0].__name__}, whose update is not linear in the gradient: leave out "
            "'momentum' (and use another compressor than dgc), or use one of those optimizers"
        )
    frameworks = {kind.__module__.partition(".")[0] for kind in linear}
    if kinds[0].__module__.partition(".")[0] not in frameworks:
        warn_once(
            "compression applies the momentum of %s: its update must be linear in the gradient, as "
            "that of %s is",
            f"{kinds[0].__module__}.{kinds[0].__qualname__}",
            names,
        )

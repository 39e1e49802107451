"""Momentum that gluon_gc applies instead of the optimizer: its formula, and its checks.

Compressing after momentum follows Zheng et al., "Communication-Efficient Distributed Blockwise
Momentum SGD with Error-Feedback" (dist-EF-SGDM), NeurIPS 2019. On each worker, before the residual
is added:

    m = mu m + g;  g = g + mu m     Nesterov momentum
    m = mu m + g;  g = m            classic momentum

The compressor does this for its gradients, and the front end for the averages of uncompressed
gradients. The part of weight decay in the momentum follows BytePS. The front end adds it to the
averages, before the optimizer's update, for parameter x with weight decay d:

    w = mu (w + d x);  g = g + w    classic momentum adds the w before the step

Each front end computes this with its framework's own operators, because they round differently:
PyTorch's `add_(x, alpha=d)` is a fused multiply-add, MXNet's `sgd_mom_update` computes both lines
at once, and the order of float16 conversions differs.
"""

from __future__ import annotations

from typing import Any, Sequence

from ..log import warn_once
from ..options import listed
from .params import CompressionParams


def has_nesterov(
    own: CompressionParams | None, of_all: CompressionParams, of_optimizer: bool
) -> bool:
    """Whether a parameter has Nesterov's momentum, rather than classic momentum.

    If compression applies the momentum of one parameter, it applies that of all. The parameter's
    own params decide the form, then those of all parameters, then the optimizer.
    """
    for params in (own, of_all):
        if params is not None and params.mu is not None:
            return params.nesterov
    return of_optimizer


def require_linear(optimizer: Any, linear: Sequence[type]) -> None:
    """Raise ValueError unless the optimizer's update is linear in the gradient, as of `linear`.

    Otherwise the result would differ from that of the optimizer's own momentum. One warning is
    logged for a subclass from elsewhere.
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

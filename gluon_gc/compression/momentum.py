"""Momentum that compression applies instead of the optimizer: for which optimizers, and which."""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence

from ..log import logger
from ..options import listed
from .params import CompressionParams


def has_nesterov(
    own: Optional[CompressionParams], of_all: CompressionParams, of_optimizer: bool
) -> bool:
    """Whether a parameter has Nesterov's momentum, rather than the classic one.

    All parameters of an optimizer have momentum if compression applies it to any of them. Which one
    it is is decided by a parameter's own compression_params, then by those of all parameters, then
    by the optimizer.

    Parameters
    ----------
    own : CompressionParams, optional
        The parameter's own, if it has any.
    of_all : CompressionParams
    of_optimizer : bool
        Whether the optimizer has Nesterov's momentum.
    """
    for params in (own, of_all):
        if params is not None and params.mu is not None:
            return params.nesterov
    return of_optimizer


def require_linear(optimizer: Any, linear: Sequence[type]) -> None:
    """Make sure that momentum may be applied before compression.

    Momentum then comes before the optimizer's update. It comes to the same only if the update is
    linear in the gradient: an optimizer that normalises gradients would shrink it.

    Parameters
    ----------
    optimizer : object
    linear : sequence of type
        The framework's optimizers whose updates are. A subclass is warned of, once.

    Raises
    ------
    ValueError
        The optimizer is none of them.
    """
    kinds = [kind for kind in type(optimizer).__mro__ if not _is_ours(kind)]
    names = listed([kind.__name__ for kind in linear], "and")
    if not isinstance(optimizer, tuple(linear)):
        raise ValueError(
            f"compression applies the optimizer's momentum, which is right for {names}, but not "
            f"for {kinds[0].__name__}, whose update is not linear in the gradient: leave out "
            "'momentum' (and take another compressor than dgc), or take one of those optimizers"
        )
    frameworks = {kind.__module__.partition(".")[0] for kind in linear}
    if kinds[0].__module__.partition(".")[0] not in frameworks:
        _warn_of_subclass(f"{kinds[0].__module__}.{kinds[0].__qualname__}", names)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "gluon_gc"


@functools.lru_cache(maxsize=None)  # once a process
def _warn_of_subclass(name: str, linear: str) -> None:
    logger.warning(
        "compression applies the momentum of %s: its update must be linear in the gradient, as "
        "that of %s is",
        name,
        linear,
    )

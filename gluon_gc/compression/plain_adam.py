"""Warns of compressors with which Adam trains much worse if they compress its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable

from ..log import logger

if TYPE_CHECKING:
    from .params import CompressionParams

_OPTIMIZERS = ("Adam", "AdamW")
_SMALL = 0.01
"""The share of elements that topk must send."""


def is_adam(optimizer: str) -> bool:
    """Whether the optimizer's class, of this name, is one whose gradients this module is about."""
    return optimizer in _OPTIMIZERS


def warn_of_plain_adam(optimizer: str, several: Iterable[CompressionParams]) -> None:
    """Warn once if one of these params compresses the gradients of Adam too much.

    Parameters
    ----------
    optimizer : str
        The name of the optimizer's class.
    several : iterable of CompressionParams
        The params of gradients that are averaged in every step.
    """
    if not is_adam(optimizer):
        return
    costly = [params.compressor.name for params in several if _costs_much(params)]
    if costly:
        logger.warning(
            "%s trains much worse if %s compresses its gradients: use algorithm 'onebit_adam', "
            "which compresses its momentum, or 'local_steps' (docs/guides/adam.md)",
            optimizer,
            costly[0],
        )


def _costs_much(params: CompressionParams) -> bool:
    compressor = params.compressor
    if compressor is None:
        return False
    return compressor.name == "onebit" or (compressor.name == "topk" and compressor.k < _SMALL)

"""Broadcasts arrays that have a copy on each context."""

from __future__ import annotations

from typing import Sequence, Tuple

from mxnet.ndarray import NDArray

from .exchange import Exchange
from .gradient import legacy


def broadcast_copies(
    exchange: Exchange, copies: Sequence[Tuple[str, Sequence[NDArray]]], root_rank: int
) -> None:
    """Overwrite all copies of each array, one for each context, with those of worker `root_rank`.

    Parameters
    ----------
    exchange : Exchange
    copies : sequence of (str, sequence of NDArray)
        The name of each array, for errors, and its copies.
    root_rank : int
    """
    if not copies:
        return
    names, arrays = zip(*((name, legacy(array_copies)) for name, array_copies in copies))
    exchange.broadcast([first for first, *_ in arrays], root_rank, names)
    for first, *others in arrays:
        for other in others:
            first.copyto(other)

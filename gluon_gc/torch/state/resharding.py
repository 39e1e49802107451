"""Divides the residuals in the state_dicts of one number of workers among another number."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...compression import CompressionParams
from ...log import logger
from ...state import States, fitting
from ...state.cutting import Arrays
from ..exchange import Exchange
from . import coder_states
from .state_dicts import NOUN


def check_workers(exchange: Exchange, workers: Sequence[States], several: bool) -> None:
    """Raise ValueError unless state_dicts are of the workers that can continue here.

    `several`: the state_dicts are those of all workers that saved them. Otherwise there is only
    this worker's.
    """
    named = [(NOUN, states) for states in workers]
    remedy = "pass the list of the state_dicts of all workers that saved"
    fitting.check_ranks(named, several, exchange.workers, exchange.rank, remedy)
    if several and len(workers) != exchange.workers and exchange.machines is not None:
        raise ValueError(
            f"the {NOUN} is of {len(workers)} workers, but {exchange.workers} are here: residuals "
            'of whole machines cannot be divided anew; use "hierarchical": False'
        )


def has_layout_of_this_worker(exchange: Exchange, header: Mapping[str, Any]) -> bool:
    """Return whether a saved worker's arrays must have the same layout as this worker's.

    If machines sum first, the workers of a machine have arrays of different chunks.
    """
    return exchange.machines is None or header["rank"] == exchange.rank


def warn(before: int, now: int) -> None:
    """Warn that another number of workers continues."""
    if before != now:
        logger.warning(
            "the residuals of %d workers are divided among %d; their sum stays the same",
            before,
            now,
        )


def of_this_worker(
    exchange: Exchange,
    params: Mapping[str, CompressionParams],
    arrays: Sequence[Arrays],
    several: bool,
) -> Arrays:
    """Return the arrays with which this worker continues. All workers call this.

    Parameters
    ----------
    exchange : Exchange
    params : mapping
        The compression of each tensor.
    arrays : sequence of dict
        The arrays of one state_dict, or of all if `several`.
    several : bool
        As in `check_workers`.
    """
    if not several:
        return coder_states.with_owned(exchange, arrays[0])
    before, now = len(arrays), exchange.workers
    if before == now:
        return coder_states.with_aggregators(arrays[exchange.rank], arrays)
    shares = {
        name: fitting.Share(before, now, exchange.rank, own.compressor.traits.draws_alike)
        for name, own in params.items()
        if own.compressor is not None
    }
    return coder_states.with_aggregators(fitting.shared_out(arrays, shares), arrays)

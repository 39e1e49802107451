"""Residuals and momentum that a process keeps from one cluster to the next."""

from __future__ import annotations

from typing import Collection, Dict, Optional

import mxnet as mx
import numpy as np

from ..checkpoint import STREAM
from ..checkpoint.cutting import Arrays
from ..compression import CompressionParams
from ..plan import Tensor
from . import tensor_states
from .exchange import Exchange


class Suspended:
    """The state of a worker whose cluster is suspended; all workers create it together.

    Parameters
    ----------
    exchange : Exchange
        Still connected.
    previous : Suspended, optional
        The result of the last `suspend`. Tensors that were not declared since keep its state.
    goes_on : bool
        Whether the workers are the same as at the last `suspend`, with the same ranks.
    """

    def __init__(
        self, exchange: Exchange, previous: Optional[Suspended] = None, goes_on: bool = False
    ) -> None:
        self._rank, self._workers = exchange.rank, exchange.num_workers
        places = tensor_states.places(exchange)
        self._own: Arrays = dict(tensor_states.state(exchange, places.keys()))
        self._sums: Arrays = {
            place: array * array.dtype.type(places[place.tensor][1] / self._workers)
            for place, array in self._own.items()
            if place.node == "worker" and place.what != STREAM
        }  # the workers of a machine may have the same residual, which counts once
        if self._workers > 1:
            self._sum_up(exchange)
        self._owners: Dict[str, int] = dict.fromkeys(places, self._workers)  # with such a state
        if previous is not None:
            self._keep(exchange, previous, goes_on)

    def _keep(self, exchange: Exchange, previous: Suspended, goes_on: bool) -> None:
        """Keep the previous state of the tensors that are not declared."""

        def undeclared(arrays: Arrays) -> Arrays:
            return {p: array for p, array in arrays.items() if not exchange.declared(p.tensor)}

        self._own.update(undeclared(previous._returned(exchange, goes_on)))
        kept_sums = undeclared(previous._sums)
        self._sums.update(kept_sums)
        for place in kept_sums:
            self._owners[place.tensor] = previous._owners_in(exchange, place.tensor)

    def _sum_up(self, exchange: Exchange) -> None:
        """Sum over all workers, uncompressed."""
        totals = {
            f"suspended.{place.tensor}.{place.what}": mx.nd.array(array, dtype=array.dtype)
            for place, array in self._sums.items()
        }
        tensors = [
            Tensor(name, array.size, np.dtype(array.dtype).name, CompressionParams())
            for name, array in totals.items()
        ]
        exchange.declare(tensors, call="suspend")
        exchange.sum_in_place(totals)
        self._sums = {place: a.asnumpy() for place, a in zip(self._sums, totals.values())}

    def fits(self, exchange: Exchange) -> bool:
        """Whether this worker has the same rank again, among the same number of workers."""
        return (self._rank, self._workers) == (exchange.rank, exchange.num_workers)

    def give_back(self, exchange: Exchange, names: Collection[str], all_fit: bool) -> None:
        """Restore the state of these tensors' channels.

        If `all_fit`, each worker gets its own state back. Otherwise the old workers share the sums
        of all states, and aggregators and random streams start anew.
        """
        load = tensor_states.load if all_fit else tensor_states.load_workers
        load(exchange, names, self._returned(exchange, all_fit))

    def _returned(self, exchange: Exchange, all_fit: bool) -> Arrays:
        """The arrays that this worker gets back."""
        if all_fit:
            return self._own
        return {
            place: array / self._owners_in(exchange, place.tensor)
            for place, array in self._sums.items()
        }

    def _owners_in(self, exchange: Exchange, tensor: str) -> int:
        """The number of a cluster's workers that get back a tensor's state."""
        return min(self._owners[tensor], exchange.num_workers)


def all_fit(exchange: Exchange, suspended: Optional[Suspended]) -> bool:
    """Whether every worker has its old rank again, in a cluster of the same size; collective."""
    fits = suspended is not None and suspended.fits(exchange)
    return exchange.agrees("init", [("", {"goes on as it was": fits})]) and fits

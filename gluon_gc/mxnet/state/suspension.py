"""Residuals and momentum that a process keeps from one cluster to the next."""

from __future__ import annotations

import math
from typing import Collection

import mxnet as mx
import numpy as np

from ...compression import CompressionParams
from ...exchange.plan import Tensor
from ...state import STREAM, Arrays
from ...state.division import Share, aggregators, arrays_of_worker
from ..exchange.exchange import Exchange
from . import tensor_states


class Suspended:
    """The state of a worker whose cluster is suspended; all workers create it together.

    `previous` is the result of the last `suspend`. Tensors that were not declared since keep its
    state. `goes_on`: whether the workers are the same as then, with the same ranks.
    """

    def __init__(
        self, exchange: Exchange, previous: Suspended | None = None, goes_on: bool = False
    ) -> None:
        self._rank, self._workers = exchange.rank, exchange.num_workers
        senders = tensor_states.senders(exchange)
        self._residuals = {tensor: count for tensor, (_, count) in senders.items()}
        self._own: Arrays = dict(tensor_states.state(exchange, senders.keys()))
        self._sums: Arrays = {
            key: array * array.dtype.type(self._residuals[key.tensor] / self._workers)
            for key, array in self._own.items()
            if key.node == "worker" and key.what != STREAM
        }  # the workers of a machine may have the same residual, which counts once
        if self._workers > 1:
            self._sum_up(exchange)
        self._owners: dict[str, int] = dict.fromkeys(senders, self._workers)  # with such a state
        if previous is not None:
            self._keep(exchange, previous, goes_on)

    def _keep(self, exchange: Exchange, previous: Suspended, goes_on: bool) -> None:
        """Keep the previous state of the tensors that are not declared."""

        def undeclared(arrays: Arrays) -> Arrays:
            return {p: array for p, array in arrays.items() if not exchange.declared(p.tensor)}

        if goes_on:
            self._own.update(undeclared(previous._own))
        kept = previous._residuals if goes_on else dict.fromkeys(previous._residuals, 0)
        self._residuals = {**kept, **self._residuals}  # 0: there is only a sum
        kept_sums = undeclared(previous._sums)
        self._sums.update(kept_sums)
        for key in kept_sums:
            self._owners[key.tensor] = previous._owners_in(exchange, key.tensor)

    def _sum_up(self, exchange: Exchange) -> None:
        """Sum over all workers, uncompressed."""
        totals = {
            f"suspended.{key.tensor}.{key.what}": mx.nd.array(array, dtype=array.dtype)
            for key, array in self._sums.items()
        }
        tensors = [
            Tensor(name, array.size, np.dtype(array.dtype).name, CompressionParams())
            for name, array in totals.items()
        ]
        exchange.declare(tensors, call="suspend")
        exchange.sum_in_place(totals)
        self._sums = {key: a.asnumpy() for key, a in zip(self._sums, totals.values())}

    def fits(self, exchange: Exchange) -> bool:
        """Whether this worker has the same rank again, among the same number of workers."""
        return (self._rank, self._workers) == (exchange.rank, exchange.num_workers)

    def give_back(self, exchange: Exchange, names: Collection[str], all_fit: bool) -> None:
        """Restore the state of these tensors' channels.

        If `all_fit`, aggregators get their state back, and each worker gets its own if as many
        nodes have residuals as before. Otherwise the old workers share the sums of all states, and
        the rest starts anew.
        """
        residuals = {
            tensor: count
            for tensor, (_, count) in tensor_states.senders(exchange).items()
            if tensor in names
        }
        load = tensor_states.load if all_fit else tensor_states.load_workers
        if all_fit and all(self._residuals.get(t, n) == n for t, n in residuals.items()):
            load(exchange, names, self._own)
            return
        shares = {
            # The workers of a machine may have one residual together.
            tensor: Share(
                1, math.ceil(self._owners_in(exchange, tensor) * (count / exchange.num_workers))
            )
            for tensor, count in residuals.items()
            if tensor in self._owners
        }
        sums = {**self._sums, **aggregators([self._own])}
        load(exchange, names, arrays_of_worker([sums], 0, shares))

    def _owners_in(self, exchange: Exchange, tensor: str) -> int:
        """The number of a cluster's workers that get back a tensor's state."""
        return min(self._owners[tensor], exchange.num_workers)


def all_fit(exchange: Exchange, suspended: Suspended | None) -> bool:
    """Whether every worker has its old rank again, in a cluster of the same size; collective."""
    fits = suspended is not None and suspended.fits(exchange)
    return exchange.agrees("init", [("", {"goes on as it was": fits})]) and fits

"""What compression carries over from one cluster to the next, within a process."""

from __future__ import annotations

from typing import Collection, Optional

import mxnet as mx
import numpy as np

from ..checkpoint import STREAM
from ..checkpoint.cutting import Arrays
from ..compression import CompressionParams
from ..plan import Tensor
from . import carried
from .exchange import CompressingKVStore


class Suspended:
    """What a worker has of a cluster that all leave; all workers make it together.

    Parameters
    ----------
    store : CompressingKVStore
        Connected yet.
    """

    def __init__(self, store: CompressingKVStore) -> None:
        self._rank, self._workers = store.rank, store.num_workers
        places = carried.places(store)
        self._own: Arrays = dict(carried.state(store, places.keys()))
        self._sums: Arrays = {
            place: array * array.dtype.type(places[place.tensor][1] / self._workers)
            for place, array in self._own.items()
            if place.node == "worker" and place.what != STREAM
        }  # workers of a node may have the same residual, which counts once
        if self._workers > 1:
            self._sum_up(store)

    def _sum_up(self, store: CompressingKVStore) -> None:
        """Sum over all workers, uncompressed."""
        totals = {
            f"suspended.{place.tensor}.{place.what}": mx.nd.array(array, dtype=array.dtype)
            for place, array in self._sums.items()
        }
        tensors = [
            Tensor(name, array.size, np.dtype(array.dtype).name, CompressionParams())
            for name, array in totals.items()
        ]
        store.declare(tensors, call="suspend")
        store.gradient_scale = 1.0
        store.pushpull(list(totals), list(totals.values()))
        self._sums = {place: a.asnumpy() for place, a in zip(self._sums, totals.values())}

    def fits(self, store: CompressingKVStore) -> bool:
        """Whether this worker has its rank and as many others again."""
        return (self._rank, self._workers) == (store.rank, store.num_workers)

    def give_back(self, store: CompressingKVStore, names: Collection[str], all_fit: bool) -> None:
        """Let the channels of these tensors go on: each as it was, if that `all_fit`.

        Else those who have been there share the sums, and aggregators and random streams are new.
        """
        if all_fit:
            carried.load(store, names, self._own)
            return
        going_on = min(self._workers, store.num_workers)
        shares = {place: array / going_on for place, array in self._sums.items()}
        carried.load_workers(store, names, shares)


def all_fit(store: CompressingKVStore, suspended: Optional[Suspended]) -> bool:
    """Whether every worker of a cluster goes on as it was; all ask together."""
    fits = suspended is not None and suspended.fits(store)
    try:
        store.agree("init", [("", {"goes on as it was": fits})])
    except RuntimeError:  # some do, and some do not
        return False
    return fits

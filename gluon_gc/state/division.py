"""Divides the state of all workers among another group of workers."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from .. import kernels
from .file import LOCAL, OF_ALL, STREAM, Arrays


class Share(NamedTuple):
    """How the residuals of a tensor are divided among the workers of a new group.

    There is one residual for each worker, or one for each machine if the workers of a machine sum
    their gradients first.
    """

    before: int  # the number of residuals in the former group
    now: int
    number: int = 0  # of this worker, or of its machine
    draws_alike: bool = True  # whether all nodes draw the same random numbers


def arrays_of_worker(
    arrays: Sequence[Arrays],
    rank: int,
    shares: Mapping[Any, Share] | None = None,
    aggregating: Sequence[Arrays] = (),
) -> Arrays:
    """The arrays with which a worker continues, given those of all former workers, by rank.

    Without `shares`, it continues as the former worker with its rank. With the share of each
    compressed tensor, it gets an equal share of the sum of residuals and momenta, so the sum stays
    the same. It then continues the random stream of rank 0, jumped ahead to its own part unless all
    nodes draw the same numbers. The arrays of a single worker may already be such sums.
    `aggregating` has more arrays of aggregators.
    """
    own = arrays[rank % len(arrays)]
    if shares is None:
        kept = {key: array for key, array in own.items() if key.node != "aggregator"}
    else:
        kept = {key: array for key, array in own.items() if key.node == LOCAL}
        for key, array in arrays[0].items():
            share = shares.get(key.tensor)
            if key.node == OF_ALL:
                kept[key] = array
            elif key.node == "worker" and share is not None:
                kept[key] = _divided(key, arrays, share)
    return {**kept, **aggregators([*arrays, *aggregating])}


def _divided(key: Any, arrays: Sequence[Arrays], share: Share) -> np.ndarray:
    """This worker's share of an array of all workers."""
    first = arrays[0][key]
    if key.what == STREAM:
        if share.draws_alike:
            return first
        jumped = first.copy()
        for row in jumped:
            kernels.jump_to_worker(row[2:], share.number)
        return jumped
    total = np.zeros(first.shape, np.float64)
    for worker_arrays in arrays:
        total += worker_arrays[key]
    total *= share.before / len(arrays) / share.now
    return total.astype(first.dtype)


def aggregators(arrays: Sequence[Arrays]) -> Arrays:
    """The arrays of all aggregators. An array that several workers have saved counts once."""
    return {key: array for key, array in joined(arrays).items() if key.node == "aggregator"}


def joined(arrays: Sequence[Arrays]) -> Arrays:
    """The arrays of several workers that have chunks of the same node."""
    together: Arrays = {}
    for worker_arrays in arrays:
        for key, array in worker_arrays.items():
            if key.what == STREAM and key in together:  # workers have rows of different chunks
                array = np.unique(np.concatenate([together[key], array]), axis=0)
            together[key] = array
    return together

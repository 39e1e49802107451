"""Which images a worker gets in an epoch; needs no framework."""

from typing import Tuple

import numpy as np


def steps_per_epoch(count: int, batch_size: int, size: int) -> int:
    """Return how many full batches each of `size` workers gets from `count` images."""
    steps = count // (batch_size * size)
    if steps == 0:
        raise ValueError(
            f"--batch-size must be at most {count // size} with {size} workers, got {batch_size}"
        )
    return steps


def shuffled_share(
    count: int, batch_size: int, rank: int, size: int, seed: Tuple[int, int]
) -> np.ndarray:
    """Return the images of worker `rank` in one epoch: none twice, none that another worker has.

    Parameters
    ----------
    count, batch_size, rank, size : int
        Images in all; images a batch; this worker; the number of workers.
    seed : tuple of int
        (run's seed, epoch): the order of the images. Must be the same on all workers.

    Returns
    -------
    ndarray
        Indices, (steps, batch_size), equally many on every worker.
    """
    steps = steps_per_epoch(count, batch_size, size)
    order = np.random.default_rng(seed).permutation(count)
    return order[rank::size][: steps * batch_size].reshape(steps, batch_size)

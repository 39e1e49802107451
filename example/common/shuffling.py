"""Shuffles the images and splits them among workers in each epoch; needs no framework."""

from typing import Tuple

import numpy as np


def steps_per_epoch(count: int, batch_size: int, size: int) -> int:
    """Return the number of full batches that each of `size` workers gets from `count` images."""
    steps = count // (batch_size * size)
    if steps == 0:
        raise ValueError(
            f"--batch-size must be at most {count // size} with {size} workers, got {batch_size}"
        )
    return steps


def shuffled_share(
    count: int, batch_size: int, rank: int, size: int, seed: Tuple[int, int]
) -> np.ndarray:
    """Return the images of worker `rank` in one epoch. No image appears twice, on any worker.

    Parameters
    ----------
    count, batch_size, rank, size : int
        The number of images; images per batch; this worker's rank; the number of workers.
    seed : tuple of int
        (run's seed, epoch), which determines the order. Must be the same on all workers.

    Returns
    -------
    ndarray
        Indices of images, shape (steps, batch_size). All workers get the same number of steps.
    """
    steps = steps_per_epoch(count, batch_size, size)
    order = np.random.default_rng(seed).permutation(count)
    return order[rank::size][: steps * batch_size].reshape(steps, batch_size)

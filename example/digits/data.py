"""Splits the digits among workers and yields batches of NDArrays."""

from typing import Iterator, Tuple

import mxnet as mx
from common.digits import Images
from common.shuffling import shuffled_share


def batches(
    images: Images, batch_size: int, rank: int, size: int, seed: Tuple[int, int]
) -> Iterator[Tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    """Yield the batches of worker `rank` in one epoch. No image appears twice, on any worker.

    Parameters
    ----------
    images : Images
        All training images, the same on every worker.
    batch_size, rank, size : int
        Images per batch; this worker's rank; the number of workers.
    seed : tuple of int
        (run's seed, epoch), which determines the order. Must be the same on all workers.

    Yields
    ------
    tuple of NDArray
        Pixels (batch_size, 1, 8, 8) and labels (batch_size,).
    """
    for chosen in shuffled_share(len(images.labels), batch_size, rank, size, seed):
        yield mx.nd.array(images.pixels[chosen]), mx.nd.array(images.labels[chosen])

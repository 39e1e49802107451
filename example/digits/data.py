"""The digits as batches of MXNet's arrays, sharded by rank."""

from typing import Iterator, Tuple

import mxnet as mx
from common.digits import Images
from common.shuffling import shuffled_share


def batches(
    images: Images, batch_size: int, rank: int, size: int, seed: Tuple[int, int]
) -> Iterator[Tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    """Yield one epoch of worker `rank`: no image twice, none that another worker has.

    Parameters
    ----------
    images : Images
        All training images, the same on every worker.
    batch_size, rank, size : int
        Images a batch; this worker; the number of workers.
    seed : tuple of int
        (run's seed, epoch): the order of the images. Must be the same on all workers.

    Yields
    ------
    tuple of NDArray
        Pixels (batch_size, 1, 8, 8) and labels (batch_size,).
    """
    for chosen in shuffled_share(len(images.labels), batch_size, rank, size, seed):
        yield mx.nd.array(images.pixels[chosen]), mx.nd.array(images.labels[chosen])

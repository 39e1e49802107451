"""Who trains on which image in which epoch."""

import argparse
from typing import Iterator, List, NamedTuple, Tuple

import numpy as np
from mxnet.gluon.data import Sampler

import gluon_gc as bps


class Share(NamedTuple):
    """What a worker gets of the images."""

    batch_size: int  # of all its devices
    rank: int
    size: int  # number of workers
    seed: int  # of shuffling, the same on all workers


def share_of_this_worker(args: argparse.Namespace) -> Share:
    """Return the share that the arguments mean; to be called after `bps.init`."""
    return Share(args.batch_size * max(1, args.num_gpus), bps.rank(), bps.size(), args.seed)


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


class ShareSampler(Sampler):
    """The batches of a worker for a Gluon DataLoader: those of `shuffled_share` in epoch `epoch`.

    Parameters
    ----------
    count : int
        Images in all.
    share : Share
        This worker's.
    """

    def __init__(self, count: int, share: Share) -> None:
        self._steps = steps_per_epoch(count, share.batch_size, share.size)
        self._count = count
        self._share = share
        self.epoch = 0

    def __iter__(self) -> Iterator[List[int]]:
        *share, seed = self._share
        return iter(shuffled_share(self._count, *share, (seed, self.epoch)).tolist())

    def __len__(self) -> int:
        return self._steps

"""Assigns images to workers in each epoch."""

import argparse
from typing import Iterator, List, NamedTuple

from mxnet.gluon.data import Sampler

import gluon_gc as bps

from .shuffling import shuffled_share, steps_per_epoch


class Share(NamedTuple):
    """A worker's share of the images."""

    batch_size: int  # of all devices of the worker together
    rank: int
    size: int  # number of workers
    seed: int  # seed of shuffling, the same on all workers


def share_of_this_worker(args: argparse.Namespace) -> Share:
    """Return this worker's share; call it after `bps.init`."""
    return Share(args.batch_size * max(1, args.num_gpus), bps.rank(), bps.size(), args.seed)


class ShareSampler(Sampler):
    """A batch sampler for a Gluon DataLoader: `shuffled_share` in the epoch set by `epoch`.

    Parameters
    ----------
    count : int
        The number of images of all workers.
    share : Share
        This worker's share.
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

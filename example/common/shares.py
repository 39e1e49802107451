"""Who trains on which image in which epoch."""

import argparse
from typing import Iterator, List, NamedTuple

from mxnet.gluon.data import Sampler

import gluon_gc as bps

from .shuffling import shuffled_share, steps_per_epoch


class Share(NamedTuple):
    """What a worker gets of the images."""

    batch_size: int  # of all its devices
    rank: int
    size: int  # number of workers
    seed: int  # of shuffling, the same on all workers


def share_of_this_worker(args: argparse.Namespace) -> Share:
    """Return the share that the arguments mean; to be called after `bps.init`."""
    return Share(args.batch_size * max(1, args.num_gpus), bps.rank(), bps.size(), args.seed)


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

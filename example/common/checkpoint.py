"""Saves the network and every worker's training state, and goes on from them.

After n epochs, worker 0 saves the weights as NAME-n.params, and worker r what its trainer carries
from step to step as NAME-n.states.r.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
from mxnet import gluon

from gluon_gc.checkpoint import replacing


class ResumePoint(NamedTuple):
    """What to go on from; an empty path means nothing."""

    params: str = ""
    states: str = ""
    epoch: int = 0

    def trainer_states(self, rank: int) -> str:
        """Return the file of a worker."""
        return f"{self.states}.{rank}"


def resume_point(args: argparse.Namespace) -> ResumePoint:
    """Return what --resume-from names, or the other --resume arguments.

    Raises
    ------
    ValueError
        --resume-from is not the weights of a checkpoint, or it or --resume is not alone.
    """
    point = ResumePoint(args.resume_params, args.resume_states, args.resume_epoch)
    if args.resume and (args.resume_from or point != ResumePoint()):
        raise ValueError("--resume auto goes without the other --resume arguments")
    if not args.resume_from:
        return point
    if point != ResumePoint():
        raise ValueError("--resume-from goes without the other --resume arguments")
    epoch = re.search(r"-(\d+)\.params$", args.resume_from)
    if epoch is None:
        raise ValueError(
            f"--resume-from must be NAME-EPOCHS.params, got {args.resume_from!r}; "
            "--resume-params takes any weights"
        )
    states = str(Path(args.resume_from).with_suffix(".states"))
    return ResumePoint(args.resume_from, states, int(epoch[1]))


class Checkpoints:
    """Saves a checkpoint every `period` epochs, and after the last.

    Parameters
    ----------
    folder : str
        Where to; made if need be.
    name : str
        What files begin with.
    period : int
        0: nothing is saved.
    rank : int
        This worker.
    """

    def __init__(self, folder: str, name: str, period: int, rank: int) -> None:
        self._stem = Path(folder).expanduser() / name
        self._period = period
        self._rank = rank

    def save(self, net: gluon.Block, trainer: gluon.Trainer, epochs: int, last: bool) -> None:
        """Save what `epochs` epochs of training have made, if it is time to."""
        if not self._period or (epochs % self._period and not last):
            return
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        if self._rank == 0:
            with replacing(f"{self._stem}-{epochs}.params") as new:
                net.save_parameters(new)
                mx.nd.load(new)  # MXNet does not say that a disk is full
        trainer.save_states(f"{self._stem}-{epochs}.states.{self._rank}")

"""Saves the network and each worker's training state, and finds the checkpoint to resume from.

After n epochs, worker 0 saves the weights as NAME-n.params. Worker r saves its trainer's state
(optimizer, residuals and momentum) as NAME-n.states.r.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
from mxnet import gluon

from gluon_gc.state import replacing


class ResumePoint(NamedTuple):
    """The checkpoint to resume from. An empty path means that there is no such file."""

    params: str = ""
    states: str = ""
    epoch: int = 0

    def trainer_states(self, rank: int) -> str:
        """Return the path of a worker's trainer states."""
        return f"{self.states}.{rank}"


def resume_point(args: argparse.Namespace) -> ResumePoint:
    """Return the checkpoint that the --resume arguments name.

    Raises
    ------
    ValueError
        If --resume-from does not name a checkpoint's weights, or if --resume-from or --resume is
        combined with another --resume argument.
    """
    point = ResumePoint(args.resume_params, args.resume_states, args.resume_epoch)
    if args.resume and (args.resume_from or point != ResumePoint()):
        raise ValueError("--resume auto must not be combined with other --resume arguments")
    if not args.resume_from:
        return point
    if point != ResumePoint():
        raise ValueError("--resume-from must not be combined with other --resume arguments")
    epoch = re.search(r"-(\d+)\.params$", args.resume_from)
    if epoch is None:
        raise ValueError(
            f"--resume-from must be NAME-EPOCHS.params, got {args.resume_from!r}; "
            "--resume-params takes any weights"
        )
    states = str(Path(args.resume_from).with_suffix(".states"))
    return ResumePoint(args.resume_from, states, int(epoch[1]))


class Checkpoints:
    """Saves a checkpoint every `period` epochs and after the last epoch.

    Parameters
    ----------
    folder : str
        The folder of the checkpoints; it is created if it does not exist.
    name : str
        The start of the file names.
    period : int
        Epochs between checkpoints; 0: nothing is saved.
    rank : int
        The rank of this worker.
    """

    def __init__(self, folder: str, name: str, period: int, rank: int) -> None:
        self._stem = Path(folder).expanduser() / name
        self._period = period
        self._rank = rank

    def save(self, net: gluon.Block, trainer: gluon.Trainer, epochs: int, last: bool) -> None:
        """Save the state after `epochs` epochs, if a checkpoint is due or it is the last epoch."""
        if not self._period or (epochs % self._period and not last):
            return
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        if self._rank == 0:
            with replacing(f"{self._stem}-{epochs}.params") as new:
                net.save_parameters(new)
                mx.nd.load(new)  # MXNet does not report a full disk when it saves
        trainer.save_states(f"{self._stem}-{epochs}.states.{self._rank}")

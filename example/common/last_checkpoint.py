"""Finds the last checkpoint that all workers have, for --resume auto."""

from pathlib import Path
from typing import Sequence

import mxnet as mx
import numpy as np

import gluon_gc as bps
from gluon_gc import state as checkpoint

from .checkpoint import ResumePoint
from .progress import say


def last_checkpoint(folder: str, name: str, epochs: int) -> ResumePoint:
    """Find the last complete checkpoint, and copy its weights to every worker's disk.

    A checkpoint is complete if each worker can read its own states and worker 0 the weights. All
    workers must call this together. Each checks its own disk; the disks may be a shared one.

    Parameters
    ----------
    folder, name : str
        As in `Checkpoints`.
    epochs : int
        The largest number of epochs to look for.

    Returns
    -------
    ResumePoint
        The checkpoint, or an empty one if none is complete.
    """
    stem = Path(folder).expanduser() / name
    points = [ResumePoint(f"{stem}-{n}.params", f"{stem}-{n}.states", n) for n in range(epochs + 1)]
    of_all = _everywhere([_is_there(point) for point in points])
    for point in reversed([point for point, there in zip(points, of_all) if there]):
        if _everywhere([_is_whole(point)])[0]:
            _bring(Path(point.params))
            _say(f"resumes from {point.params}")
            return point
    _say(f"starts from the beginning: there is no complete checkpoint {stem}-EPOCHS")
    return ResumePoint()


def _say(line: str) -> None:
    if bps.rank() == 0:
        say(line)


def _everywhere(here: Sequence[bool]) -> np.ndarray:
    """Return, element by element, whether the value is true on all workers."""
    return bps.allreduce(np.array(here, dtype=np.int64), average=False) == bps.size()


def _is_there(point: ResumePoint) -> bool:
    rank = bps.rank()
    return Path(point.trainer_states(rank)).exists() and (rank != 0 or Path(point.params).exists())


def _is_whole(point: ResumePoint) -> bool:
    rank = bps.rank()
    try:
        checkpoint.read(point.trainer_states(rank))
        if rank == 0:
            mx.nd.load(point.params)
    except (OSError, ValueError, mx.MXNetError):
        return False
    return True


def _bring(path: Path) -> None:
    """Copy worker 0's file to all workers whose file differs."""
    data = path.read_bytes() if bps.rank() == 0 else b""
    size = bps.allreduce(len(data), average=False)
    array = mx.nd.array(np.frombuffer(data.ljust(size, b"\0"), np.uint8), dtype=np.uint8)
    bps.broadcast_parameters([array])
    data = array.asnumpy().tobytes()
    if not (path.exists() and path.read_bytes() == data):
        with checkpoint.replacing(str(path)) as new:
            Path(new).write_bytes(data)

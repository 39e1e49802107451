"""Finds the last checkpoint that all workers have, which --resume auto goes on from."""

from pathlib import Path
from typing import Sequence

import mxnet as mx
import numpy as np

import gluon_gc as bps
from gluon_gc import checkpoint

from .checkpoint import ResumePoint
from .progress import say


def last_checkpoint(folder: str, name: str, epochs: int) -> ResumePoint:
    """Return the last one that is complete, with its weights on every worker's disk.

    Each worker has its own states of it, and worker 0 the weights, all whole. All workers call this
    together, and look at their own disks, which may be one.

    Parameters
    ----------
    folder, name : str
        As `Checkpoints` has them.
    epochs : int
        The most that may have been done.

    Returns
    -------
    ResumePoint
        An empty one if no checkpoint is complete.
    """
    stem = Path(folder).expanduser() / name
    points = [ResumePoint(f"{stem}-{n}.params", f"{stem}-{n}.states", n) for n in range(epochs + 1)]
    of_all = _everywhere([_is_there(point) for point in points])
    for point in reversed([point for point, there in zip(points, of_all) if there]):
        if _everywhere([_is_whole(point)])[0]:
            _bring(Path(point.params))
            _say(f"goes on from {point.params}")
            return point
    _say(f"starts afresh: there is no complete checkpoint {stem}-EPOCHS")
    return ResumePoint()


def _say(line: str) -> None:
    if bps.rank() == 0:
        say(line)


def _everywhere(here: Sequence[bool]) -> np.ndarray:
    """Return which of these are true on all workers."""
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
    """Bring the file of worker 0 to all others that do not have the same."""
    data = path.read_bytes() if bps.rank() == 0 else b""
    size = bps.allreduce(len(data), average=False)
    array = mx.nd.array(np.frombuffer(data.ljust(size, b"\0"), np.uint8), dtype=np.uint8)
    bps.broadcast_parameters([array])
    data = array.asnumpy().tobytes()
    if not (path.exists() and path.read_bytes() == data):
        with checkpoint.replacing(str(path)) as new:
            Path(new).write_bytes(data)

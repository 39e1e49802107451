"""The training log: a line of JSON with the configuration, then one per epoch or evaluation."""

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List

import gluon_gc

from .board import Board


def configuration(args: argparse.Namespace, size: int) -> Dict[str, Any]:
    """Return a run's configuration: its arguments, number of workers and version."""
    return {"arguments": vars(args), "workers": size, "gluon_gc": gluon_gc.__version__}


class EpochLog:
    """Appends records to --logging-file and to the event files of --tensorboard.

    Only worker 0 writes. Each record is written at once, so that a run which stops early keeps its
    records.

    Parameters
    ----------
    args : Namespace
        Has logging_file and tensorboard; an empty string turns that log off.
    rank, size : int
        The rank of this worker, and the number of workers.
    resume : bool
        Whether to append to an existing file instead of replacing it.
    """

    def __init__(
        self, args: argparse.Namespace, rank: int, size: int, resume: bool = False
    ) -> None:
        first = rank == 0
        config = configuration(args, size)
        self._board = Board(args.tensorboard if first else "", config)
        self._path = Path(args.logging_file) if args.logging_file and first else None
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not (resume and self._path.exists()):
                self._path.write_text("")
        self._append({"configuration": config})

    def write(self, record: Dict[str, Any]) -> None:
        """Append the record of an epoch or evaluation. Its values must be JSON serializable."""
        self._append(record)
        self._board.write(record)

    def close(self) -> None:
        """Close the log; nothing can be written afterwards."""
        self._board.close()

    def _append(self, record: Dict[str, Any]) -> None:
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def read_log(path: str) -> List[Dict[str, Any]]:
    """Read the records that an `EpochLog` wrote to `path`, in order."""
    return [record for record in _records(path) if "configuration" not in record]


def read_configurations(path: str) -> List[Dict[str, Any]]:
    """Read the configurations in `path`: that of the first run, then those that resumed it."""
    return [record["configuration"] for record in _records(path) if "configuration" in record]


def _records(path: str) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

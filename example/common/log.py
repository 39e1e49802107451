"""The training log: a line of JSON with the configuration, and one an epoch."""

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List

import gluon_gc

from .board import Board


def configuration(args: argparse.Namespace, size: int) -> Dict[str, Any]:
    """Return what a run is made of: its arguments, the number of workers, the version."""
    return {"arguments": vars(args), "workers": size, "gluon_gc": gluon_gc.__version__}


class EpochLog:
    """Appends records to --logging-file, a line each, so that a run which stops early leaves what
    it had, and to the event files of --tensorboard. Worker 0 keeps it.

    Parameters
    ----------
    args : Namespace
        With both; an empty string keeps no such log.
    rank, size : int
        This worker; the number of workers.
    resume : bool
        Whether to go on with a file that exists, instead of replacing it.
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
        """Append the record of an epoch, whose values must be ones that JSON knows."""
        self._append(record)
        self._board.write(record)

    def close(self) -> None:
        """Finish it; nothing can be written afterwards."""
        self._board.close()

    def _append(self, record: Dict[str, Any]) -> None:
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def read_log(path: str) -> List[Dict[str, Any]]:
    """Read the records of epochs that an `EpochLog` wrote to `path`, in order."""
    return [record for record in _records(path) if "configuration" not in record]


def read_configurations(path: str) -> List[Dict[str, Any]]:
    """Read with what `path` was written: one run, and those that went on with it."""
    return [record["configuration"] for record in _records(path) if "configuration" in record]


def _records(path: str) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

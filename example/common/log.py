"""The training log: one line of JSON an epoch."""

import json
from pathlib import Path
from typing import Any, Dict, List


class EpochLog:
    """Appends records to a file, a line each, so that a run which stops early leaves what it had.

    Parameters
    ----------
    path : str
        File to write. An empty string keeps no log.
    resume : bool
        Whether to go on with a file that exists, instead of replacing it.
    """

    def __init__(self, path: str, resume: bool = False) -> None:
        self._path = Path(path) if path else None
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not (resume and self._path.exists()):
                self._path.write_text("")

    def write(self, record: Dict[str, Any]) -> None:
        """Append one record, whose values must be ones that JSON knows."""
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def read_log(path: str) -> List[Dict[str, Any]]:
    """Read the records that an `EpochLog` wrote to `path`, in order."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

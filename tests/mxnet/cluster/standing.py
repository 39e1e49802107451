"""Keeps one cluster running for many jobs, because most of a test's time is starting processes."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from tests.mxnet.cluster.cluster import Cluster, start_cluster, start_local, start_machine
from tests.mxnet.cluster.forked_horovod import start_forked_horovod

_IDLE_SECONDS = 120  # workers end after this time without a job

Results = List[Dict[str, np.ndarray]]


class _Standing:
    """A cluster whose workers run `jobs.stand`."""

    def __init__(self, start: Callable[[Path], Cluster]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name)
        self._cluster = start(self._path)
        self._jobs = 0
        self._last = time.monotonic()

    def is_fresh(self) -> bool:
        """Return whether its workers wait for a job and will wait long enough."""
        return time.monotonic() - self._last < _IDLE_SECONDS / 2

    def run(self, job: str, arguments: Any) -> Results:
        """Run a function of jobs.py on all workers; returns the results by rank."""
        self._tell({"job": job, "arguments": arguments})
        ranks = range(self._cluster.workers)
        files = [self._path / f"result{self._jobs - 1}-{rank}.npz" for rank in ranks]

        def done() -> bool:
            return all(file.exists() for file in files)

        ended = self._cluster.ended
        self._cluster.wait_until(lambda: done() or ended(), f"{job} did not end")
        assert done(), f"{ended()} ended early{self._cluster.logs()}"
        self._last = time.monotonic()
        return [dict(np.load(file)) for file in files]

    def end(self) -> None:
        """End all processes, and check that their exit codes are 0."""
        try:
            self._tell(None)
            self._cluster.wait_for_end()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all processes at once."""
        self._cluster.stop()
        self._folder.cleanup()

    def _tell(self, job: Optional[Dict[str, Any]]) -> None:
        file = self._path / f"job{self._jobs}.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps(job))
        part.rename(file)  # atomic, so that a reader sees a complete file
        self._jobs += 1


_standing: Dict[str, _Standing] = {}  # at most one, because Horovod's workers are never idle


def end() -> None:
    """End the standing cluster, so that the next job starts new processes."""
    while _standing:
        _standing.popitem()[1].end()


def kill() -> None:
    """Kill all processes of the standing cluster."""
    while _standing:
        _standing.popitem()[1].kill()


def _run(start: Callable[..., Cluster], job: str, arguments: Any, **options: Any) -> Results:
    name = f"{start.__name__} {options}"
    if name not in _standing or not _standing[name].is_fresh():
        end()
        _standing[name] = _Standing(lambda folder: start(folder, "stand", _IDLE_SECONDS, **options))
    try:
        return _standing[name].run(job, arguments)
    except BaseException:
        _standing.pop(name).kill()
        raise


def run(
    job: str,
    arguments: Any = None,
    workers: int = 2,
    servers: int = 1,
    variables: Optional[Dict[str, Any]] = None,
) -> Results:
    """Run a function of jobs.py on every worker of a cluster; returns the results by rank."""
    options = {"workers": workers, "servers": servers, "variables": variables}
    return _run(start_cluster, job, arguments, **options)


def run_horovod(
    job: str,
    arguments: Any = None,
    workers: int = 2,
    variables: Optional[Dict[str, Any]] = None,
) -> Results:
    """Run a function of jobs.py on Horovod workers; returns the results by rank."""
    return _run(start_forked_horovod, job, arguments, workers=workers, variables=variables)


def run_machine(
    job: str,
    arguments: Any = None,
    workers: int = 2,
    variables: Optional[Dict[str, Any]] = None,
) -> Results:
    """Run a function of jobs.py on the workers of one machine; returns the results by rank."""
    return _run(start_machine, job, arguments, workers=workers, variables=variables)


def run_local(
    job: str, arguments: Any = None, variables: Optional[Dict[str, Any]] = None
) -> Dict[str, np.ndarray]:
    """Run a function of jobs.py in one process without a cluster."""
    (result,) = _run(start_local, job, arguments, variables=variables)
    return result

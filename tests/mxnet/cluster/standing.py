"""Keeps clusters running for many jobs, because most of a test's time is starting processes.

run(job, {"key": value}, workers=2)  # what the function returned, by rank

@on_workers(2, "servers", "horovod")
def test_both_get_the_sum():
    ...  # in both workers, between bps.init() and bps.shutdown(), once on each engine
"""

from __future__ import annotations

import pickle
import tempfile
import time
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional

import pytest

from tests.mxnet.cluster.cluster import (
    Arguments,
    Cluster,
    Job,
    start_cluster,
    start_forked_horovod,
    start_local,
    start_machine,
)

_IDLE_SECONDS = 120  # workers end after this time without a job
_MOST = 2  # standing clusters: enough for tests that compare two
_OTHERS = 1  # seconds to wait for further workers to say why they failed

Variables = Optional[Mapping[str, Any]]
Results = List[Any]


class _Standing:
    """A cluster whose workers run jobs one after another."""

    def __init__(self, start: Callable[..., Cluster]) -> None:
        from tests.mxnet.cluster.worker import stand

        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name)
        jobs = self._path / "jobs"
        jobs.mkdir()
        self._jobs, self._number = jobs, 0
        self._cluster = start(self._path, stand, {"patience": _IDLE_SECONDS, "folder": str(jobs)})
        self._last = time.monotonic()

    def is_fresh(self) -> bool:
        """Return whether its workers wait for a job and will wait long enough."""
        return time.monotonic() - self._last < _IDLE_SECONDS / 2

    def run(self, job: Job, arguments: Arguments) -> Results:
        """Run a job on all workers; returns what it returned, by rank."""
        self._tell((job.__module__, job.__name__, dict(arguments or {})))
        ranks = range(self._cluster.workers)
        files = [self._jobs / f"result{self._number - 1}-{rank}" for rank in ranks]
        came: dict[int, Any] = {}

        def collect() -> bool:
            for rank in set(ranks) - came.keys():
                if files[rank].exists():
                    came[rank] = pickle.loads(files[rank].read_bytes())
            return len(came) == len(files)

        def problems() -> list[str]:
            return [f"worker {rank}: {said}" for rank, (_, said) in sorted(came.items()) if said]

        ended, name = self._cluster.ended, job.__name__
        self._cluster.wait_until(lambda: collect() or problems() or ended(), f"{name} did not end")
        if not collect() or problems():
            deadline = time.monotonic() + _OTHERS
            while not collect() and time.monotonic() < deadline:
                time.sleep(0.02)
            said = "\n".join(problems()) or f"{ended()} ended early"
            raise AssertionError(f"{name}: {said}{self._cluster.logs()}")
        self._last = time.monotonic()
        return [came[rank][0] for rank in ranks]

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

    def _tell(self, job: Any) -> None:
        from tests.mxnet.cluster.worker import save

        save(job, self._jobs / f"job{self._number}")
        self._number += 1


_standing: dict[str, _Standing] = {}  # the one that ran a job last is the last


def end() -> None:
    """End the standing clusters, so that the next job starts new processes."""
    while _standing:
        _standing.popitem()[1].end()


def kill() -> None:
    """Kill all processes of the standing clusters."""
    while _standing:
        _standing.popitem()[1].kill()


def _run(start: Callable[..., Cluster], job: Job, arguments: Arguments, **options: Any) -> Results:
    name = f"{start.__name__} {options}"
    standing = _standing.pop(name, None)
    if standing is not None and not standing.is_fresh():
        standing.end()
        standing = None
    if standing is None:
        while len(_standing) >= _MOST:
            _standing.pop(next(iter(_standing))).end()
        standing = _Standing(partial(start, **options))
    try:
        results = standing.run(job, arguments)
    except BaseException:
        standing.kill()
        raise
    _standing[name] = standing
    return results


def run(
    job: Job,
    arguments: Arguments = None,
    workers: int = 2,
    servers: int = 1,
    variables: Variables = None,
) -> Results:
    """Run a function of a test module on every worker of a cluster with a parameter server."""
    options = {"workers": workers, "servers": servers, "variables": variables}
    return _run(start_cluster, job, arguments, **options)


def run_horovod(
    job: Job, arguments: Arguments = None, workers: int = 2, variables: Variables = None
) -> Results:
    """Run a function of a test module on Horovod workers."""
    return _run(start_forked_horovod, job, arguments, workers=workers, variables=variables)


def run_machine(
    job: Job, arguments: Arguments = None, workers: int = 2, variables: Variables = None
) -> Results:
    """Run a function of a test module on the workers of one machine."""
    return _run(start_machine, job, arguments, workers=workers, variables=variables)


def run_local(job: Job, arguments: Arguments = None, variables: Variables = None) -> Any:
    """Run a function of a test module in one process without a cluster; returns its result."""
    (result,) = _run(start_local, job, arguments, variables=variables)
    return result


ENGINES = {"servers": run, "horovod": run_horovod, "machine": run_machine}
on_each_engine = pytest.mark.parametrize("start", ENGINES.values(), ids=ENGINES)


def on_workers(workers: int, *engines: str, **more: Any) -> Callable[[Job], Job]:
    """Let the body of a test run on this number of workers of each of these engines.

    By default the engine is a parameter server. The body's arguments are pytest's; they must be
    picklable. `more` is `servers` or `variables`.
    """

    def decorate(body: Job) -> Job:
        @wraps(body)
        def test(engine: str = "servers", **arguments: Any) -> None:
            ENGINES[engine](test, arguments, workers, **more)

        test.body = body
        if not engines:
            return test
        own = signature(body)
        parameter = Parameter("engine", Parameter.KEYWORD_ONLY)
        test.__signature__ = own.replace(parameters=[*own.parameters.values(), parameter])
        return pytest.mark.parametrize("engine", engines)(test)

    return decorate

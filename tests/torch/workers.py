"""Tests whose bodies run on several workers at once.

    @on_workers(2)
    def test_weights_are_equal():
        ...  # in both workers, between bps.init() and bps.shutdown()

Worker processes stay for the next test with as many workers and the same environment variables,
because to start them takes longer than most tests. After a failure new ones are started.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import tempfile
import time
import traceback
from functools import wraps
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from tests.processes import clean_environ, free_port
from tests.torch import forked

_TIMEOUT = 100  # seconds that a body may take
_OTHERS = 1  # seconds to wait for further workers to say why they failed


def on_workers(workers: int, **variables: Any) -> Callable[[Callable[..., None]], Callable]:
    """Let the body of a test run on workers, with these environment variables.

    The body's arguments are pytest's, which must be picklable.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @wraps(body)
        def test(**arguments: Any) -> None:
            run(test, workers, variables, **arguments)

        test.body = body
        return test

    return decorate


def run(
    test: Callable[..., None],
    workers: int,
    variables: Optional[Mapping[str, Any]] = None,
    **arguments: Any,
) -> str:
    """Run the body of a decorated test on workers, and return what they print."""
    key = workers, tuple(sorted((name, str(value)) for name, value in (variables or {}).items()))
    if key not in _standing:
        end()
        _standing[key] = _Workers(workers, dict(key[1]))
    try:
        return _standing[key].run(test.body, arguments)
    except BaseException:
        end()
        raise


def end() -> None:
    """Kill the standing workers."""
    while _standing:
        _standing.popitem()[1].kill()


_Key = Tuple[int, Tuple[Tuple[str, str], ...]]
_standing: Dict[_Key, _Workers] = {}
"""At most one element: idle workers need memory."""


class _Workers:
    """Processes that wait for the bodies of tests."""

    def __init__(self, workers: int, variables: Mapping[str, str]) -> None:
        own = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        context = forked.server(frozenset({**clean_environ(), **own}.items()))
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name, "log")
        self._log.touch()
        self._connections: List[Connection] = []
        self._processes = []
        for rank in range(workers):
            here, there = context.Pipe()
            sizes = {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
            place = {name: str(value) for name, value in {**sizes, **ranks}.items()}
            environment = {**clean_environ(), **own, **variables, **place}
            process = context.Process(
                target=_work, args=(environment, str(self._log), there), daemon=True
            )
            process.start()
            self._connections.append(here)
            self._processes.append(process)
            there.close()

    def run(self, body: Callable[..., None], arguments: Mapping[str, Any]) -> str:
        begin = self._log.stat().st_size
        port = free_port()
        for connection in self._connections:
            connection.send((body.__module__, body.__name__, arguments, port))
        waiting, problems = list(self._connections), []
        deadline = time.monotonic() + _TIMEOUT
        while waiting:
            ready = wait(waiting, max(0, deadline - time.monotonic()))
            if not ready:
                problems.append("" if problems else f"{body.__name__} took {_TIMEOUT} seconds")
                break
            for connection in ready:
                waiting.remove(connection)
                problem = _received(connection)
                if problem:
                    problems.append(f"worker {self._connections.index(connection)}: {problem}")
                    deadline = min(deadline, time.monotonic() + _OTHERS)
        said = self._log.read_bytes()[begin:].decode(errors="replace")
        assert not problems, "\n".join([*problems, said])
        return said

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _received(connection: Connection) -> str:
    """Return why a worker has failed; empty if it has not."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return "the process has ended"


def _work(environment: Dict[str, str], log: str, connection: Connection) -> None:
    """Run bodies in a forked process."""
    forked.become(environment, log)
    import gluon_gc.torch as bps  # the server has imported it

    while True:
        try:
            module, name, arguments, port = connection.recv()
        except EOFError:
            return
        before = {**os.environ, "MASTER_PORT": str(port)}
        os.environ.update(before)
        try:
            bps.init()
            getattr(importlib.import_module(module), name).body(**arguments)
            bps.shutdown()
            gc.collect()
        except BaseException:
            connection.send(traceback.format_exc())
            return
        os.environ.clear()
        os.environ.update(before)
        sys.stdout.flush()
        connection.send("")

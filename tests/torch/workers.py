"""Tests whose bodies run on several workers at once.

    @on_workers(2)
    def test_weights_are_equal():
        ...  # in both workers, between bps.init() and bps.shutdown()

Worker processes stay for the next test with as many workers and the same environment variables,
because to start them takes longer than most tests. A failure ends them.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from functools import wraps
from inspect import Parameter, signature
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Mapping, Tuple

import pytest

from tests.torch import forked, scripts
from tests.torch.gpu import emulated

_MOST = 3  # kinds of standing workers; idle ones need memory
_TIMEOUT = 110  # seconds that a body may take
_OTHERS = 1  # seconds to wait for further workers to say why they failed


def on_workers(*counts: int, **variables: Any) -> Callable[[Callable[..., None]], Callable]:
    """Let the body of a test run on this number of workers, with these environment variables.

    If EMULATED_GPU is set to the folder of an emulator, tensors are on an emulated GPU.

    With several counts, there is a test for each. The body's arguments are pytest's; they must be
    picklable.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @wraps(body)
        def test(workers: int = counts[0], **arguments: Any) -> None:
            run(test, workers, variables, **arguments)

        test.body = body
        if len(counts) == 1:
            return test
        own = signature(body)
        parameter = Parameter("workers", Parameter.KEYWORD_ONLY)
        test.__signature__ = own.replace(parameters=[*own.parameters.values(), parameter])
        return pytest.mark.parametrize("workers", counts)(test)

    return decorate


def run(
    test: Callable[..., None],
    workers: int,
    variables: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> str:
    """Run a function, or the body of a decorated test, on workers. Return what they print."""
    key = workers, tuple(sorted((name, str(value)) for name, value in (variables or {}).items()))
    if key not in _standing:
        while len(_standing) >= _MOST:
            _standing.pop(next(iter(_standing))).kill()
        _standing[key] = _Workers(workers, dict(key[1]))
    standing = _standing.pop(key)
    try:
        said = standing.run(_body(test), arguments)
    except BaseException:
        standing.kill()
        raise
    if standing.is_alive():
        _standing[key] = standing
    return said


def _body(test: Callable[..., None]) -> Callable[..., None]:
    return getattr(test, "body", test)


_Key = Tuple[int, Tuple[Tuple[str, str], ...]]
_standing: dict[_Key, _Workers] = {}


class _Workers:
    """Processes that wait for the bodies of tests."""

    def __init__(self, workers: int, variables: Mapping[str, str]) -> None:
        context = forked.server(frozenset(scripts.environ().items()))
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name, "log")
        self._log.touch()
        self._connections: list[Connection] = []
        self._processes = []
        for place in forked.places(workers):
            here, there = context.Pipe()
            environment = {**scripts.environ(), **variables, **place}
            process = context.Process(
                target=_work, args=(environment, str(self._log), there), daemon=True
            )
            process.start()
            self._connections.append(here)
            self._processes.append(process)
            there.close()

    def run(self, body: Callable[..., None], arguments: Mapping[str, Any]) -> str:
        begin = self._log.stat().st_size
        for connection in self._connections:
            connection.send((body.__module__, body.__name__, arguments))
        waiting, problems = list(self._connections), []
        deadline = time.monotonic() + _TIMEOUT
        while waiting:
            ready = wait(waiting, max(0, deadline - time.monotonic()))
            if not ready:
                problems.append("" if problems else f"{body.__name__} took {_TIMEOUT} seconds")
                self._print_stacks()
                break
            for connection in ready:
                waiting.remove(connection)
                rank = self._connections.index(connection)
                problem = self._received(rank)
                if problem:
                    problems.append(f"worker {rank}: {problem}")
                    deadline = min(deadline, time.monotonic() + _OTHERS)
        said = self._log.read_bytes()[begin:].decode(errors="replace")
        assert not problems, "\n".join([*problems, said])
        return said

    def _received(self, rank: int) -> str:
        """Return why a worker has failed; empty if it has not, or has ended itself with 0."""
        try:
            return self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join()
            code = self._processes[rank].exitcode
            return f"the process has ended with exit code {code}" if code else ""

    def _print_stacks(self) -> None:
        """Let the workers print where each of their threads is."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(_OTHERS)

    def is_alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _call(module: str, name: str, *arguments: Any, **named: Any) -> None:
    """Run a body in this worker."""
    import gluon_gc.torch as bps  # a forked process has imported it

    bps.init()
    if "EMULATED_GPU" in os.environ:
        emulated.start(os.environ["EMULATED_GPU"])
    _body(getattr(importlib.import_module(module), name))(*arguments, **named)
    bps.shutdown()


def _work(environment: dict[str, str], log: str, connection: Connection) -> None:
    """Run bodies in a forked process."""
    forked.become(environment, log)
    faulthandler.register(signal.SIGUSR1)
    while True:
        try:
            module, name, arguments = connection.recv()
        except EOFError:
            return
        before = dict(os.environ)
        try:
            _call(module, name, **arguments)
            gc.collect()
        except BaseException:
            connection.send(traceback.format_exc())
            return
        os.environ.clear()
        os.environ.update(before)
        sys.stdout.flush()
        connection.send("")


if __name__ == "__main__":
    _call(*sys.argv[1:])

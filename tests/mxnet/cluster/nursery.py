"""Starts Python processes quickly, because importing MXNet takes two processor seconds.

One process imports MXNet and gluon_gc, and forks a child for each command. Environment variables
that the two packages read when they are imported must be the same in all children.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module, reload
from pathlib import Path
from typing import Any, Mapping

ROOT = Path(__file__).resolve().parents[3]
_READ_AT_IMPORT = (
    ("MXNET_", "OMP_", "PYTHON"),
    ("BYTEPS_THREADPOOL_SIZE", "GLUON_GC_LIBRARY", "LD_PRELOAD"),
)
# When a key-value store is created, and at the first operator. `bps.init` sets the second one.
_READ_LATER = ("MXNET_KVSTORE_", "MXNET_CPU_PARALLEL_RAND_COPY")
_SCRIPTS = ("worker.py", "service.py")  # of a worker, and of a server
_MOST_BYTES = 1 << 17  # size limit of a request


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    prefixes, names = _READ_AT_IMPORT
    return {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith(prefixes) and not name.startswith(_READ_LATER)
    }


class Forked:
    """A forked process, with the methods of subprocess.Popen that the tests use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask(ended=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that has imported MXNet and gluon_gc, and forks children."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._alike = _read_at_import(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.mxnet.cluster.nursery", str(theirs.fileno())],
                cwd=ROOT,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
            )

    def serves(self, command: list[str], environment: Mapping[str, str]) -> bool:
        """Return whether a command can be forked: it imports both, in the same environment."""
        python, what = command[:2]
        if what == "-c":
            imports = all(f"import {name}" in command[2] for name in ("mxnet", "gluon_gc"))
        else:
            imports = Path(what).name in _SCRIPTS and "scheduler" not in command
        alike = _read_at_import(environment) == self._alike
        return python == sys.executable and imports and alike and self._process.poll() is None

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> Forked:
        """Start a command, with its output in a file."""
        about = {"arguments": command[1:], "environment": dict(environment), "log": str(log)}
        return Forked(self, self.ask(start=about))

    def ask(self, **request: Any) -> Any:
        self._requests.send(json.dumps(request).encode())
        return json.loads(self._requests.recv(_MOST_BYTES))


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Answer requests until the tests end. In a forked child, return the command to run."""
    while True:
        text = requests.recv(_MOST_BYTES)
        if not text:
            sys.exit()
        ((action, about),) = json.loads(text).items()
        answer = None
        if action == "start":
            answer = os.fork()
            if answer == 0:
                requests.close()
                return about
        else:
            pid, status = os.waitpid(about, os.WNOHANG)
            answer = _exit_code(status) if pid else None
        requests.send(json.dumps(answer).encode())


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(about: Mapping[str, Any]) -> None:
    """Run a script, or the code after -c, as a newly started Python would."""
    die_with_parent()
    streams: tuple[tuple[str, int, tuple[int, ...]], ...] = (
        (os.devnull, os.O_RDONLY, (0,)),
        (about["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, (1, 2)),
    )
    for path, flags, numbers in streams:
        opened = os.open(path, flags, 0o644)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(about["environment"])
    from gluon_gc import env, log

    env.prepare_engine()
    log.logger.handlers.clear()
    reload(log)  # applies this process's log level
    first, *rest = about["arguments"]
    if first == "-c":
        sys.argv[:], sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:], sys.path[0] = [first, *rest], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in ("kvstore", "server", "trainer.trainer"):
        import_module(f"gluon_gc.mxnet.{name}")
    import_module("tests.mxnet.exchange.test_two_way")  # and what most jobs' modules import
    gc.freeze()  # a child need not look at MXNet's objects, and copy their pages, when it ends
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))

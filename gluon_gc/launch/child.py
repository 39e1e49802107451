"""Starts, reads and ends one process of a cluster on this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections import deque
from dataclasses import dataclass
from typing import Iterable, Mapping, Optional, Sequence

from .prefixed_output import LineSplitter, PrefixedOutput

_LAST_LINES = 20  # lines kept for the report of a failure
_PREFIXED = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Task:
    """A process to run.

    Parameters
    ----------
    name : str
        The prefix of its output.
    command : sequence of str
        The program and its arguments.
    environ : mapping
        The whole environment of the process.
    service : bool
        Whether it is a server or the scheduler. A service exits with code 0 when all workers have
        disconnected, which may be long before the workers end.
    bare : bool
        Whether it inherits stdin, stdout and stderr from this process, without a prefix.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    service: bool = False
    bare: bool = False


class Child:
    """A running task in its own process group. The kernel kills it when this process dies.

    Parameters
    ----------
    task : Task
    output : PrefixedOutput
        The destination of its output, unless the task is bare.

    Attributes
    ----------
    code : int or None
        The exit code, or minus the number of the signal that ended it; None while it runs.
    last_lines : deque of str
        The last lines of its output.
    """

    def __init__(self, task: Task, output: PrefixedOutput) -> None:
        self.task = task
        self.code: Optional[int] = None
        self.last_lines: deque = deque(maxlen=_LAST_LINES)
        self._splitter = LineSplitter()
        self._output = output
        launcher = os.getpid()

        def die_with_launcher() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        streams = {} if task.bare else _PREFIXED
        self._process = subprocess.Popen(
            task.command,
            env={"PYTHONUNBUFFERED": "1", **task.environ},
            bufsize=0,
            start_new_session=True,
            preexec_fn=die_with_launcher,  # safe: this process has one thread
            **streams,
        )
        self.pipe = self._process.stdout
        if self.pipe is not None:
            os.set_blocking(self.pipe.fileno(), False)

    def signal(self, number: int) -> None:
        """Send a signal to the process group, if the process still runs."""
        if self.code is None:
            os.killpg(self._process.pid, number)

    def read(self) -> bool:
        """Pass on the available output. Returns False at the end of the output."""
        while self.pipe is not None:
            data = self.pipe.read(65536)
            if data is None:
                return True
            if not data:
                return False
            self._show(self._splitter.feed(data))
        return False

    def reap(self) -> bool:
        """Whether the process has ended. If so, kill the rest of its process group."""
        if self.code is not None:
            return True
        pid = self._process.pid
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        os.killpg(pid, signal.SIGKILL)  # before the wait, after which the pid may be reused
        self.code = self._process.wait()
        self.read()
        self._show(self._splitter.close())
        return True

    def _show(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.last_lines.append(line)
            self._output.line(self.task.name, line)
        self._output.bar(self.task.name, self._splitter.bar)

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return 128 - self.code if self.code < 0 else self.code

    def obituary(self) -> str:
        """A message that says how the process ended."""
        if self.code < 0:
            return f"{self.task.name} was killed by {signal.Signals(-self.code).name}"
        return f"{self.task.name} exited with code {self.code}"

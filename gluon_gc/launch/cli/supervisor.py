"""Runs the processes of a machine together. When one fails, it ends or restarts all of them.

There is one thread. It sleeps in `select` until a child writes output or ends, or a signal arrives.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Sequence

from ..leaving import ALONE
from .output import LineSplitter, PrefixedOutput, say

GRACE = 5.0
"""Seconds between the signal that asks a process to end and SIGKILL."""
LEAVE = 10.0
"""Seconds in which the servers and the scheduler must end after the last worker."""
PAUSE = 1.0
"""Seconds before a restart."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_LINES = 20  # lines kept for the report of a failure
_PREFIXED = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Task:
    name: str
    command: Sequence[str]
    environ: Mapping[str, str]  # the whole environment
    service: bool = False  # a server or the scheduler: it may end with code 0 before the workers
    bare: bool = False  # it inherits stdin, stdout and stderr, without a prefix


class Child:
    """A running task in its own process group. The kernel kills it when this process dies."""

    def __init__(self, task: Task, output: PrefixedOutput) -> None:
        self.task = task
        self.code: int | None = None  # minus the signal that ended it; None: it runs
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


class _Supervisor:
    def __init__(self) -> None:
        self.children: list[Child] = []
        self.signals: list[int] = []
        self.asked = 0  # the first signal to this process; 0: none
        self._output = PrefixedOutput(sys.stdout.buffer, sys.stdout.isatty())
        self._selector = selectors.DefaultSelector()
        self._wakeup, waker = socket.socketpair()
        for end in (self._wakeup, waker):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_FORWARDED):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # Python writes its number to the socket

    def start(self, task: Task) -> None:
        child = Child(task, self._output)
        self.children.append(child)
        if child.pipe is not None:
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def poll(self, timeout: float | None) -> None:
        """Sleep until a child writes or ends or a signal arrives, and handle all such events."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                numbers = self._wakeup.recv(4096)
                self.signals += [n for n in numbers if n in _FORWARDED]
                self.asked = self.asked or next(iter(self.signals), 0)
            elif not key.data.read():
                self._selector.unregister(key.fileobj)
        for child in self.children:
            child.reap()

    def wait(self, children: Sequence[Child], seconds: float) -> None:
        """Wait until these children have ended, a signal arrives, or the time is over."""
        self._sleep(seconds, lambda: any(child.code is None for child in children))

    def _sleep(self, seconds: float, condition: Callable[[], bool] = lambda: True) -> None:
        deadline = time.monotonic() + seconds
        while condition() and not self.signals:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.poll(left)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the workers with this signal, and then the services, which a worker may need."""
        for service, polite in ((False, number), (True, signal.SIGTERM)):
            group = [child for child in self.children if child.task.service == service]
            for step in (polite, signal.SIGKILL):
                for child in group:
                    child.signal(step)
                self.signals.clear()
                self.wait(group, GRACE)

    def run(self, tasks: Callable[[int], Sequence[Task]], max_restarts: int) -> int:
        restarts = 0
        while True:
            for task in tasks(restarts):
                self.start(task)
            failed = self._first_failure()
            if failed is not None:
                restarts += 1
                again = restarts <= max_restarts and self._working() and failed.exit_code != ALONE
                self._report(failed, f"; restart {restarts} of {max_restarts}" if again else "")
                if again:
                    self._sleep(PAUSE)
                elif not self.asked:
                    return failed.exit_code
            if self.asked:
                self.stop(self.asked)
                return 128 + self.asked
            if self._output.error is not None:
                if isinstance(self._output.error, BrokenPipeError):
                    return 128 + signal.SIGPIPE
                say(f"the output cannot be written: {self._output.error.strerror}")
                return 1
            if failed is None:
                return 0
            self._forget()

    def _working(self) -> bool:
        """Whether a worker has not ended with code 0 yet."""
        return any(child.code != 0 for child in self.children if not child.task.service)

    def _first_failure(self) -> Child | None:
        """Wait for the end of the tasks, and return the first child that failed.

        None means that all ended with code 0, a signal arrived, or the output cannot be written.
        """
        while not self.signals and self._output.error is None:
            for child in self.children:
                if child.code:
                    return child
            if self._working():
                self.poll(None)
            else:
                self.wait([child for child in self.children if child.task.service], LEAVE)
                if not self.signals:
                    return self._failure_of_services()
        return None

    def _failure_of_services(self) -> Child | None:
        """The service that failed after the workers had ended. Ends the remaining services."""
        for child in self.children:
            if child.code:
                return child
            if child.code is None:
                say(f"ended {child.task.name}, still running {LEAVE:.0f} s after the last worker")
                child.signal(signal.SIGKILL)
        return None

    def _report(self, child: Child, what_next: str) -> None:
        """End all children, and print how this one failed.

        Its last lines are repeated, unless they are just above on the same terminal or file.
        """
        visible = self._output.last_name == child.task.name and os.path.sameopenfile(
            sys.stdout.fileno(), sys.stderr.fileno()
        )
        self.stop()
        last_lines = "".join(f"\n  {line}" for line in child.last_lines if not visible)
        lines = f"; its last lines:{last_lines}" if last_lines else ""
        say(child.obituary() + ("" if self.asked else what_next) + lines)

    def _forget(self) -> None:
        """Drop the ended children before a restart."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._selector.unregister(key.fileobj)
        for child in self.children:
            if child.pipe is not None:
                child.pipe.close()
        self.children.clear()

    def close(self) -> None:
        self.stop()
        signal.set_wakeup_fd(-1)
        for end in (self._wakeup, self._waker, self._selector):
            end.close()


def run(tasks: Callable[[int], Sequence[Task]], max_restarts: int = 0) -> int:
    """Run the tasks that `tasks(number of earlier starts)` returns, to the end of all services.

    If a task fails, or this process gets SIGINT, SIGTERM or SIGHUP, all tasks end with their
    process groups. No task outlives this process, but a task's own children may if it gets SIGKILL.

    No restart follows a signal, the end of all workers with code 0, or a task's exit with
    `leaving.ALONE`, because the other machines did not come back.

    Returns 0, the exit code of the task that failed last, or 128 plus the number of the signal.
    """
    supervisor = _Supervisor()
    try:
        return supervisor.run(tasks, max_restarts)
    finally:
        supervisor.close()

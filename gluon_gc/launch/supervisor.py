"""Runs the processes of a cluster together: prefixes their output, ends all of them when one fails.

Then it may start them again. One thread does everything: it sleeps in select until there is output,
an ended child or a signal.
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
from typing import Callable, Iterable, Mapping, Optional, Sequence

from .leaving import ALONE
from .prefixed_output import LineSplitter, PrefixedOutput
from .standard_streams import say

GRACE = 5.0
"""Seconds from a signal that asks a process to end to the one that makes it."""
LEAVE = 10.0
"""Seconds that servers and scheduler have to leave once the workers are done."""
PAUSE = 1.0
"""Seconds before tasks are started again."""
_TAIL = 20
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PREFIXED = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Task:
    """A process to run.

    Parameters
    ----------
    name : str
        What its output is prefixed with.
    command : sequence of str
        The program and its arguments.
    environ : mapping
        Its whole environment.
    service : bool
        A server or scheduler: it leaves by itself, with code 0, once every worker has disconnected,
        which may be long before the workers end.
    bare : bool
        It reads and writes what this process does, and nothing is prefixed.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    service: bool = False
    bare: bool = False


class _Child:
    """A running task, in a process group of its own that dies with this process."""

    def __init__(self, task: Task, output: PrefixedOutput) -> None:
        self.task = task
        self.code: Optional[int] = None
        self.tail: deque = deque(maxlen=_TAIL)
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
        if self.code is None:
            os.killpg(self._process.pid, number)

    def read(self) -> bool:
        """Pass on what there is to read; False at the end of the output."""
        while self.pipe is not None:
            data = self.pipe.read(65536)
            if data is None:
                return True
            if not data:
                return False
            self._show(self._splitter.feed(data))
        return False

    def reap(self) -> bool:
        """Note the exit code if the process has ended, and end what it left in its group."""
        if self.code is not None:
            return True
        pid = self._process.pid
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        os.killpg(pid, signal.SIGKILL)  # before the wait: until then the group's number is its own
        self.code = self._process.wait()
        self.read()
        self._show(self._splitter.close())
        return True

    def _show(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.tail.append(line)
            self._output.line(self.task.name, line)
        self._output.bar(self.task.name, self._splitter.bar)

    @property
    def exit_code(self) -> int:
        """As a shell would say it."""
        return 128 - self.code if self.code < 0 else self.code

    def obituary(self) -> str:
        if self.code < 0:
            return f"{self.task.name} was killed by {signal.Signals(-self.code).name}"
        return f"{self.task.name} exited with code {self.code}"


class _Supervisor:
    def __init__(self) -> None:
        self.children: list = []
        self.signals: list = []
        self.asked = 0  # the first signal of all
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
                signal.signal(number, lambda *_: None)  # its number arrives at the wake-up socket

    def start(self, task: Task) -> None:
        child = _Child(task, self._output)
        self.children.append(child)
        if child.pipe is not None:
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def poll(self, timeout: Optional[float]) -> None:
        """Sleep until something happens, then take in all of it."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                numbers = self._wakeup.recv(4096)
                self.signals += [n for n in numbers if n in _FORWARDED]
                self.asked = self.asked or next(iter(self.signals), 0)
            elif not key.data.read():
                self._selector.unregister(key.fileobj)
        for child in self.children:
            child.reap()

    def wait(self, children: Sequence[_Child], seconds: float) -> None:
        """Wait for these to end, at most so long, and not beyond a signal."""
        self._sleep(seconds, lambda: any(child.code is None for child in children))

    def _sleep(self, seconds: float, condition: Callable[[], bool] = lambda: True) -> None:
        deadline = time.monotonic() + seconds
        while condition() and not self.signals:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.poll(left)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the workers with this signal, then, as workers may still need them, the services."""
        for service, polite in ((False, number), (True, signal.SIGTERM)):
            group = [child for child in self.children if child.task.service == service]
            for how, seconds in ((polite, GRACE), (signal.SIGKILL, GRACE)):
                for child in group:
                    child.signal(how)
                self.signals.clear()
                self.wait(group, seconds)

    def run(self, tasks: Callable[[int], Sequence[Task]], max_restarts: int) -> int:
        restarts = 0
        while True:
            for task in tasks(restarts):
                self.start(task)
            failed = self._first_failure()
            if failed is not None:
                restarts += 1
                again = restarts <= max_restarts and self._working() and failed.exit_code != ALONE
                self._bury(failed, f"; restart {restarts} of {max_restarts}" if again else "")
                if again:
                    self._sleep(PAUSE)
                elif not self.asked:
                    return failed.exit_code
            if self.asked:
                self.stop(self.asked)
                return 128 + self.asked
            if self._output.error is not None:
                return self._without_output(self._output.error)
            if failed is None:
                return 0
            self._forget()

    def _working(self) -> bool:
        """Whether there is a worker that has not ended well."""
        return any(child.code != 0 for child in self.children if not child.task.service)

    def _first_failure(self) -> Optional[_Child]:
        """What has failed; None once all have ended well, and where something else ends them."""
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

    def _failure_of_services(self) -> Optional[_Child]:
        """The workers are done, and the services have had time to leave."""
        for child in self.children:
            if child.code:
                return child
            if child.code is None:
                say(f"ended {child.task.name}: still there {LEAVE:.0f} s after the last worker")
                child.signal(signal.SIGKILL)
        return None

    def _bury(self, child: _Child, what_next: str) -> None:
        """End all, and say why."""
        in_sight = self._output.last_name == child.task.name and _one_stream()
        self.stop()
        last_lines = "".join(f"\n  {line}" for line in child.tail if not in_sight)
        lines = f"; its last lines:{last_lines}" if last_lines else ""
        say(child.obituary() + ("" if self.asked else what_next) + lines)

    def _without_output(self, error: OSError) -> int:
        """The exit code where nothing can be written any more."""
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        say(f"the output cannot be written: {error.strerror}")
        return 1

    def _forget(self) -> None:
        """Have no children, since all have ended."""
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


def _one_stream() -> bool:
    """Whether stdout and stderr go to the same place."""
    return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())


def run(tasks: Callable[[int], Sequence[Task]], max_restarts: int = 0) -> int:
    """Run tasks until the workers among them are done and the services have left.

    A task that fails, or a SIGINT, SIGTERM or SIGHUP to this process, ends all of them, with their
    process groups. Nothing outlives this process, except that a task's own children may if this
    process is killed with SIGKILL.

    Parameters
    ----------
    tasks : callable
        Makes the tasks, given how often they were started before.
    max_restarts : int
        How often all are started again when one fails. It does not happen after a signal, nor once
        the workers have ended well, nor where a task says that the other machines have not come
        back (`leaving.ALONE`).

    Returns
    -------
    int
        0, or the exit code of the task that failed last, or 128 plus the number of the signal.
    """
    supervisor = _Supervisor()
    try:
        return supervisor.run(tasks, max_restarts)
    finally:
        supervisor.close()

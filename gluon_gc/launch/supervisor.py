"""Runs the processes of a cluster together: ends all of them when one fails, or starts them again.

One thread does everything. It sleeps in select until there is output, an ended child or a signal.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from typing import Callable, Optional, Sequence

from .child import Child, Task
from .leaving import ALONE
from .prefixed_output import PrefixedOutput
from .standard_streams import say

GRACE = 5.0
"""Seconds from a signal that asks a process to end to the one that makes it."""
LEAVE = 10.0
"""Seconds that servers and scheduler have to leave once the workers are done."""
PAUSE = 1.0
"""Seconds before tasks are started again."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        child = Child(task, self._output)
        self.children.append(child)
        if child.pipe is not None:
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def poll(self, timeout: Optional[float]) -> None:
        """Sleep until there is output, an ended child or a signal, and take in all of them."""
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
        """Wait until these have ended, a signal comes, or the seconds are over."""
        self._sleep(seconds, lambda: any(child.code is None for child in children))

    def _sleep(self, seconds: float, condition: Callable[[], bool] = lambda: True) -> None:
        deadline = time.monotonic() + seconds
        while condition() and not self.signals:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.poll(left)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the workers with this signal, and then the services, which workers may still need."""
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
                return self._without_output(self._output.error)
            if failed is None:
                return 0
            self._forget()

    def _working(self) -> bool:
        """Whether there is a worker that has not ended well."""
        return any(child.code != 0 for child in self.children if not child.task.service)

    def _first_failure(self) -> Optional[Child]:
        """The child that failed first; None if all have ended well, or a signal ends them."""
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

    def _failure_of_services(self) -> Optional[Child]:
        """The service that failed once the workers are done. Ends the services that remain."""
        for child in self.children:
            if child.code:
                return child
            if child.code is None:
                say(f"ended {child.task.name}: still there {LEAVE:.0f} s after the last worker")
                child.signal(signal.SIGKILL)
        return None

    def _report(self, child: Child, what_next: str) -> None:
        """End all children, and print how this one failed."""
        in_sight = self._output.last_name == child.task.name and _one_stream()
        self.stop()
        last_lines = "".join(f"\n  {line}" for line in child.last_lines if not in_sight)
        lines = f"; its last lines:{last_lines}" if last_lines else ""
        say(child.obituary() + ("" if self.asked else what_next) + lines)

    def _without_output(self, error: OSError) -> int:
        """The exit code where nothing can be written any more."""
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        say(f"the output cannot be written: {error.strerror}")
        return 1

    def _forget(self) -> None:
        """Drop the children after all of them have ended."""
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
        Makes the tasks. Its argument is the number of earlier starts.
    max_restarts : int
        How often all tasks are started again when one fails. They are not started again after a
        signal, after the workers have ended well, or when a task exits with `leaving.ALONE` because
        the other machines have not come back.

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

"""Finds stalls: exchanges that do not finish, and the nodes that they wait for."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

from ... import env
from ...log import logger
from ..leaving import die

_TICK = 1.0  # seconds between two looks at the progress of a `StallWatch`


class Progress:
    """Counts the messages that this worker has sent, and the answers that it has received.

    All workers count in the same way, so a worker with a smaller count is behind the others.
    """

    def __init__(self) -> None:
        self._sent = self._answered = 0
        self._doing = ""
        self._watched: dict[Callable[[], tuple[int, bool]], int] = {}

    @contextmanager
    def waiting(self, doing: str = "") -> Iterator[None]:
        """Mark a block in which this thread waits until all workers have come to the same block.

        `doing` is the user's call in which it waits.
        """
        self._sent += 1
        self._doing = doing
        yield
        self._answered += 1
        self._doing = ""

    def watch(self, server: int, messages: Callable[[], tuple[int, bool]]) -> None:
        """Count messages to a server: their number, and whether the last one is unanswered."""
        self._watched[messages] = server

    def unwatch(self, messages: Callable[[], tuple[int, bool]]) -> None:
        """Forget a function given to `watch`. Its messages are answered, and stay counted."""
        if self._watched.pop(messages, None) is not None:
            number, _ = messages()
            self._sent += number
            self._answered += number

    def now(self) -> dict[str, Any]:
        """The numbers of messages and answers, the servers that have not answered, and the call."""
        sent, unanswered = self._sent, self._sent - self._answered
        servers = set()
        for messages, server in list(self._watched.items()):
            number, awaited = messages()
            sent += number
            if awaited:
                unanswered += 1
                servers.add(server)
        answered = sent - unanswered
        doing = {"doing": self._doing} if self._doing else {}
        return {"sent": sent, "answered": answered, "servers": sorted(servers), **doing}


@dataclass
class _Worker:
    sent: int = 0
    answered: int = 0
    servers: Sequence[int] = ()  # servers that have not answered
    doing: str = ""  # the call in which the worker waits, if it is known
    waited: float = 0.0  # seconds since the last answer

    @property
    def waits(self) -> bool:
        return self.sent > self.answered


class Stalls:
    """Finds stalls in the `Progress` that workers report.

    In a stall, at least one worker waits for an answer. A long computation on all workers is not a
    stall. `where` returns the name and the host of a node. 0 seconds mean never.
    """

    def __init__(
        self, where: Callable[[str], str], warn_after: float, give_up_after: float
    ) -> None:
        self._where = where
        self._warn_after, self._give_up_after = warn_after, give_up_after
        self._workers: dict[str, _Worker] = {}
        self._warnings = 0  # warnings in this stall

    def expect(self, workers: Sequence[str]) -> None:
        by_rank = sorted(workers, key=lambda name: (len(name), name))
        self._workers = {name: _Worker() for name in by_rank}

    def update(
        self, name: str, sent: int, answered: int, servers: Sequence[int], doing: str = ""
    ) -> None:
        """Update the progress of a worker with the result of `Progress.now`."""
        worker = self._workers[name]
        if answered != worker.answered:
            worker.waited = 0.0
        worker.sent, worker.answered, worker.servers = sent, answered, servers
        worker.doing = doing

    def look(self, seconds: float) -> tuple[str, str]:
        """Look for a stall: a text to warn with, and a reason to give up. Both may be empty.

        `seconds` is the time since the last look, without time in which this process was suspended.
        """
        for worker in self._workers.values():
            worker.waited = worker.waited + seconds if worker.waits else 0.0
        longest = max((worker.waited for worker in self._workers.values()), default=0.0)
        if self._give_up_after and longest >= self._give_up_after:
            return "", f"{self._described(self._give_up_after)} (GLUON_GC_TIMEOUT)"
        due = int(longest / self._warn_after) if self._warn_after else 0
        warning = self._described(due * self._warn_after) if due > self._warnings else ""
        self._warnings = due
        return warning, ""

    @property
    def waiting(self) -> list[str]:
        return [name for name, worker in self._workers.items() if worker.waits]

    def _awaited_call(self) -> str:
        """The end of a message: " to call NAME", or "" unless all wait in one known call."""
        (doing, *others) = {worker.doing for worker in self._workers.values() if worker.waits}
        return f" to call {doing}" if doing and not others else ""

    def _described(self, seconds: float) -> str:
        most = max(worker.sent for worker in self._workers.values())
        missing = [
            name
            for name, worker in self._workers.items()
            if worker.sent < most and not worker.waits
        ]
        if missing:
            whom = ", ".join(map(self._where, missing))
            call = self._awaited_call()
            return f"no exchange has finished for {seconds:g} s: all wait for {whom}{call}"
        waiting = [worker for worker in self._workers.values() if worker.waits]
        doing = {worker.doing: name for name, worker in self._workers.items() if worker.waits}
        if len(doing) > 1:
            each = ", ".join(
                f"{self._where(name)} waits in {call or 'an exchange of tensors'}"
                for call, name in doing.items()
            )
            return (
                f"no exchange has finished for {seconds:g} s, because the workers are in different "
                f"calls: {each}"
            )
        numbers = sorted({number for worker in waiting for number in worker.servers})
        whom = ", ".join(self._where(f"server {number}") for number in numbers) or "the servers"
        return (
            f"no exchange has finished for {seconds:g} s, although all workers have sent their "
            f"messages: no answer from {whom}"
        )


class StallWatch(Stalls):
    """A thread that warns if this worker waits too long, and then ends the process.

    It is for jobs without a scheduler, as with Horovod. It cannot know which workers are late.
    """

    def __init__(self, name: str, progress: Progress) -> None:
        super().__init__(str, env.get("GLUON_GC_STALL_SECONDS"), env.get("GLUON_GC_TIMEOUT"))
        self.expect([name])
        self._name, self._progress = name, progress
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="gluon_gc stall watch", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_TICK):
            self.update(self._name, **self._progress.now())
            warning, problem = self.look(_TICK)
            if problem:
                die(f"{self._name} ends: {problem}")
            if warning:
                logger.warning("%s: %s", self._name, warning)

    def _described(self, seconds: float) -> str:
        call = self._awaited_call()
        return f"no exchange has finished for {seconds:g} s: waiting for other workers{call}"

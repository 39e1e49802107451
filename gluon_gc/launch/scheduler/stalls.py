"""Finds stalls: exchanges that do not finish, and the nodes that they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Tuple


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
    stall.

    Parameters
    ----------
    where : callable
        Returns the name and the host of a node, given its name.
    warn_after, give_up_after : float
        Seconds without an answer; 0 means never.
    """

    def __init__(
        self, where: Callable[[str], str], warn_after: float, give_up_after: float
    ) -> None:
        self._where = where
        self._warn_after, self._give_up_after = warn_after, give_up_after
        self._workers: Dict[str, _Worker] = {}
        self._warnings = 0  # warnings in this stall

    def expect(self, workers: Sequence[str]) -> None:
        """Watch these workers, in the order of their ranks."""
        by_rank = sorted(workers, key=lambda name: (len(name), name))
        self._workers = {name: _Worker() for name in by_rank}

    def heed(
        self, name: str, sent: int, answered: int, servers: Sequence[int], doing: str = ""
    ) -> None:
        """Update the progress of a worker. The parameters are the fields of `Progress.now`."""
        worker = self._workers[name]
        if answered != worker.answered:
            worker.waited = 0.0
        worker.sent, worker.answered, worker.servers = sent, answered, servers
        worker.doing = doing

    def look(self, seconds: float) -> Tuple[str, str]:
        """Look for a stall.

        Parameters
        ----------
        seconds : float
            The time since the last look, without time in which this process was suspended.

        Returns
        -------
        warning, problem : str
            A text to warn with, and a reason to give up; both are empty if there is no stall.
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
    def waiting(self) -> List[str]:
        """The workers that wait."""
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

"""Counts a worker's exchanges, so that the scheduler can find stalls."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple


class Progress:
    """Counts the messages that this worker has sent, and the answers that it has received.

    All workers count in the same way, so a worker with a smaller count is behind the others.
    """

    def __init__(self) -> None:
        self._sent = self._answered = 0
        self._doing = ""
        self._watched: Dict[Callable[[], Tuple[int, bool]], int] = {}

    @contextmanager
    def waiting(self, doing: str = "") -> Iterator[None]:
        """Mark a block in which this thread waits until all workers have come to the same block.

        Parameters
        ----------
        doing : str
            The user's call in which it waits.
        """
        self._sent += 1
        self._doing = doing
        yield
        self._answered += 1
        self._doing = ""

    def watch(self, server: int, messages: Callable[[], Tuple[int, bool]]) -> None:
        """Count the messages to a server.

        `messages` returns their number so far, and whether the last one is not answered yet.
        """
        self._watched[messages] = server

    def unwatch(self, messages: Callable[[], Tuple[int, bool]]) -> None:
        """Forget a function given to `watch`. Its messages are answered, and stay counted."""
        if self._watched.pop(messages, None) is not None:
            number, _ = messages()
            self._sent += number
            self._answered += number

    def now(self) -> Dict[str, Any]:
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

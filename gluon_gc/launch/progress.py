"""How far a node has come with what it exchanges, to be told to the scheduler."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple


class Progress:
    """Counts what this node has sent for others to answer, and what of that was answered.

    All workers count alike, so that one who has sent less than the others is behind.
    """

    def __init__(self) -> None:
        self._sent = self._answered = 0
        self._doing = ""
        self._watched: List[Tuple[int, Callable[[], Tuple[int, bool]]]] = []

    @contextmanager
    def waiting(self, doing: str = "") -> Iterator[None]:
        """While in it, this thread waits for all others, which must do the same thing.

        Parameters
        ----------
        doing : str
            The call in which it waits, in the user's words.
        """
        self._sent += 1
        self._doing = doing
        yield
        self._answered += 1
        self._doing = ""

    def watch(self, server: int, messages: Callable[[], Tuple[int, bool]]) -> None:
        """Count messages to a server: `messages` says how many, and if an answer is to come."""
        self._watched.append((server, messages))

    def now(self) -> Dict[str, Any]:
        """The counts, the servers whose answers are to come, and in which call this node waits."""
        sent, unanswered = self._sent, self._sent - self._answered
        servers = set()
        for server, messages in list(self._watched):
            number, awaited = messages()
            sent += number
            if awaited:
                unanswered += 1
                servers.add(server)
        answered = sent - unanswered
        doing = {"doing": self._doing} if self._doing else {}
        return {"sent": sent, "answered": answered, "servers": sorted(servers), **doing}

"""A node's end of its connection to the scheduler: messages, and signs of life both ways."""

from __future__ import annotations

import socket
import threading
from typing import Any, Dict, Iterator, Optional

from .. import env
from .pulse import Pulse
from .session import LINE_BYTES, Session

_TICK = 1.0  # seconds between two looks around, where there are no signs of life


class SilentError(Exception):
    """Nothing was heard of the scheduler for PS_HEARTBEAT_TIMEOUT."""


class Connection:
    """Takes over a socket, and sends signs of life on it.

    Parameters
    ----------
    link : socket
        Connected to the scheduler, which knows this node.
    session : Session
    """

    def __init__(self, link: socket.socket, session: Session) -> None:
        self._link, self._session = link, session
        self._sending = threading.RLock()  # lines are counted in the order in which they are sent
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        self._pulse = Pulse(link, interval) if interval else None
        self._link.settimeout(interval or _TICK)
        self.messages = self._messages()
        """What the scheduler tells, until it is gone; now and then None, where it tells nothing."""

    @property
    def uri(self) -> str:
        """The scheduler's address, as a number."""
        return self._link.getpeername()[0]

    def tell(self, **message: Any) -> None:
        """Tell the scheduler; where it is gone, `messages` ends."""
        with self._sending:
            try:
                self._link.sendall(self._session.seal(message))
            except OSError:
                pass

    def close(self) -> None:
        """End it."""
        if self._pulse is not None:
            self._pulse.end()
        try:
            self._link.shutdown(socket.SHUT_RDWR)  # wakes who waits for a message
        except OSError:
            pass
        self._link.close()

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._link.close()

    def _messages(self) -> Iterator[Optional[Dict[str, Any]]]:
        rest, silent = b"", 0
        while len(rest) <= LINE_BYTES:
            try:
                data = self._link.recv(LINE_BYTES)
            except socket.timeout:
                silent += 1
                if env.is_silent(silent):
                    raise SilentError from None
                yield None
                continue
            except OSError:
                return
            if not data:
                return
            silent = 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._session.open(line) if line else None

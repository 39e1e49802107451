"""A node's end of its connection to the scheduler: messages, and signs of life both ways."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Dict, Iterator, Optional, Tuple

from .. import env
from .pulse import Pulse
from .returning import come_back, show_life
from .session import LINE_BYTES, Session

_TICK = 1.0  # seconds between two looks around, where there are no signs of life
_TCP_CLOSE = 7  # the state of a connection that was reset


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
        self._address = link.getpeername()[0]
        self._back: Optional[Tuple[str, int]] = None  # who to come back as, and to which port
        self._life: Optional[socket.socket] = None
        self._closed = False
        self._sending = threading.RLock()  # lines are counted in the order in which they are sent
        self._begin()
        self.messages = self._messages()
        """What the scheduler tells, until it is gone; now and then None, where it tells nothing."""

    def _begin(self) -> None:
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        self._pulse = Pulse(self._link, interval) if interval else None
        self._link.settimeout(interval or _TICK)

    def survives(self, name: str, port: int) -> None:
        """From now on a node of this name comes back to this port where the network resets it."""
        self._back = name, port
        self._show_life()

    def _show_life(self) -> None:
        name, port = self._back
        before = self._life
        with suppress(OSError):  # the scheduler is gone, as will be seen
            self._life = show_life((self._address, port), name, self._session)
        if before is not None:
            _reset(before)  # only a process that ends may end it

    @property
    def uri(self) -> str:
        """The scheduler's address, as a number."""
        return self._address

    def tell(self, **message: Any) -> None:
        """Tell the scheduler; where it is gone, `messages` ends."""
        with self._sending:
            sealed = self._session.seal(message)
            with suppress(OSError):  # it is sent once more where the connection is reset
                self._link.sendall(sealed)

    def close(self) -> None:
        """End it."""
        self._closed = True
        if self._pulse is not None:
            self._pulse.end()
        try:
            self._link.shutdown(socket.SHUT_RDWR)  # wakes who waits for a message
        except OSError:
            pass
        self.forget()

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._link.close()
        if self._life is not None:
            self._life.close()

    def _come_back(self) -> bool:
        """Connect again; whether that is possible."""
        if self._closed or self._back is None:
            return False
        name, port = self._back
        try:
            link, received = come_back((self._address, port), name, self._session)
            with self._sending:
                if self._pulse is not None:
                    self._pulse.end()
                self._link.close()
                self._link = link
                self._begin()
                lost = self._session.after(received)
                with suppress(OSError):  # it is reset once more
                    link.sendall(lost)
            self._show_life()
        except socket.timeout:
            raise SilentError from None
        except (OSError, ValueError):
            return False
        return True

    def _was_reset(self) -> bool:
        # Who sends may have got the error, so that who receives sees no more than an end.
        try:
            return self._link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        except OSError:  # it was closed here
            return False

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
                data = b""
            if not data:
                if not (self._was_reset() and self._come_back()):
                    return
                rest, silent = b"", 0
                continue
            silent = 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._session.open(line) if line else None


def _reset(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()

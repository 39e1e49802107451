"""A node's end of its connection to the scheduler, with heartbeats in both directions."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Dict, Iterator, Optional, Tuple

from .. import env
from .heartbeat import Heartbeat
from .returning import come_back, show_life
from .session import LINE_BYTES, Session

_TICK = 1.0  # seconds between two checks, if there are no heartbeats
_TCP_CLOSE = 7  # the state of a connection that was reset


class SilentError(Exception):
    """The scheduler was silent for PS_HEARTBEAT_TIMEOUT."""


class Connection:
    """Takes over a socket, and sends heartbeats on it.

    Parameters
    ----------
    link : socket
        A connection to the scheduler, which has admitted this node.
    session : Session
    """

    def __init__(self, link: socket.socket, session: Session) -> None:
        self._link, self._session = link, session
        self._address = link.getpeername()[0]
        self._back: Optional[Tuple[str, int]] = None  # name and port with which to reconnect
        self._life: Optional[socket.socket] = None
        self._closed = False
        self._sending = threading.RLock()  # lines are counted in the order in which they are sent
        self._begin()
        self.messages = self._messages()
        """The scheduler's messages until it is gone, with None from time to time between them."""

    def _begin(self) -> None:
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        self._heartbeat = Heartbeat(self._link, interval) if interval else None
        self._link.settimeout(interval or _TICK)

    def survives(self, name: str, port: int) -> None:
        """Reconnect under this name to this port, from now on, when the network resets it."""
        self._back = name, port
        self._show_life()

    def _show_life(self) -> None:
        name, port = self._back
        before = self._life
        with suppress(OSError):  # the scheduler is gone; reading will show it
            self._life = show_life((self._address, port), name, self._session)
        if before is not None:
            _reset(before)  # an end would mean that this process has ended

    @property
    def uri(self) -> str:
        """The scheduler's IP address."""
        return self._address

    def tell(self, **message: Any) -> None:
        """Send a message to the scheduler. If it is gone, `messages` ends."""
        with self._sending:
            sealed = self._session.seal(message)
            with suppress(OSError):  # after a reset the line is sent again
                self._link.sendall(sealed)

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.end()
        try:
            self._link.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a message
        except OSError:
            pass
        self.forget()

    def forget(self) -> None:
        """Leave the connection to the process that forked this one."""
        self._link.close()
        if self._life is not None:
            self._life.close()

    def _come_back(self) -> bool:
        """Reconnect. Returns whether that was possible."""
        if self._closed or self._back is None:
            return False
        name, port = self._back
        try:
            link, received = come_back((self._address, port), name, self._session)
            with self._sending:
                if self._heartbeat is not None:
                    self._heartbeat.end()
                self._link.close()
                self._link = link
                self._begin()
                lost = self._session.after(received)
                with suppress(OSError):  # the connection was reset again
                    link.sendall(lost)
            self._show_life()
        except socket.timeout:
            raise SilentError from None
        except (OSError, ValueError):
            return False
        return True

    def _was_reset(self) -> bool:
        # A sending thread may have got the error, so that the receiving one sees just an end.
        try:
            return self._link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        except OSError:  # this end closed it
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

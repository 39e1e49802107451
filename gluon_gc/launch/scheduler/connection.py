"""A node's end of the connection to the scheduler, with heartbeats in both directions."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Iterator

from ... import env
from ...kernels import library
from .protocol import LINE_BYTES, Session
from .reconnection import come_back, show_life

_start, _end = library.gluon_gc_heartbeat, library.gluon_gc_heartbeat_end
_start.restype, _start.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_int)
_end.restype, _end.argtypes = None, (ctypes.c_void_p,)

_TICK = 1.0  # seconds between two checks without heartbeats
_TCP_CLOSE = 7  # Linux's state of a connection that was reset


class SilentError(Exception):
    """The scheduler was silent for PS_HEARTBEAT_TIMEOUT."""


class _Heartbeat:
    """Sends an empty line at regular intervals, from a C++ thread of the library.

    A Python thread would send nothing while another thread holds the interpreter's lock.
    """

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self._thread = _start(link.fileno(), int(1000 * seconds))

    def end(self) -> None:
        """Stop sending. Call it before the socket is closed."""
        if self._thread:
            _end(self._thread)
            self._thread = None


class Connection:
    """Sends and receives messages and heartbeats on a socket to the scheduler, which it owns.

    `messages` yields the scheduler's messages, and None at a heartbeat and when none arrives in
    time. It ends when the scheduler is gone, and raises SilentError after PS_HEARTBEAT_TIMEOUT.
    """

    def __init__(self, link: socket.socket, session: Session) -> None:
        self._link, self._session = link, session
        self.uri = link.getpeername()[0]
        self._back: tuple[str, int] | None = None  # name and port with which to reconnect
        self._life: socket.socket | None = None
        self._closed = False
        self._sending = threading.RLock()  # lines must be sent in the order of their numbers
        self._begin()
        self.messages = self._messages()

    def _begin(self) -> None:
        interval = env.get("PS_HEARTBEAT_INTERVAL")
        self._heartbeat = _Heartbeat(self._link, interval) if interval else None
        self._link.settimeout(interval or _TICK)

    def survives(self, name: str, port: int) -> None:
        """Reconnect under this name to this port whenever the network resets the socket."""
        self._back = name, port
        self._show_life()

    def _show_life(self) -> None:
        name, port = self._back
        before = self._life
        with suppress(OSError):  # the scheduler is gone; reading will show it
            self._life = show_life((self.uri, port), name, self._session)
        if before is not None:
            # Reset it, because a normal close would mean that this process has ended.
            before.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            before.close()

    def tell(self, **message: Any) -> None:
        """Send a message to the scheduler. If it is gone, `messages` ends."""
        with self._sending:
            sealed = self._session.seal(message)
            with suppress(OSError):  # reconnecting sends the line again
                self._link.sendall(sealed)

    def close(self) -> None:
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.end()
        try:
            self._link.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a message
        except OSError:
            pass
        self.forget()

    def forget(self) -> None:
        """Close this process's copy of the sockets, after a fork. The parent keeps its own."""
        self._link.close()
        if self._life is not None:
            self._life.close()

    def _come_back(self) -> bool:
        """Reconnect to the scheduler. Returns False if that is not possible."""
        if self._closed or self._back is None:
            return False
        name, port = self._back
        try:
            link, received = come_back((self.uri, port), name, self._session)
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
        # Only one thread gets the error of a reset. If that was a sender, the receiver sees an end.
        try:
            return self._link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        except OSError:  # this process closed the socket
            return False

    def _messages(self) -> Iterator[dict[str, Any] | None]:
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

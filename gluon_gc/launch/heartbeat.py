"""Sends the heartbeats of this process to the scheduler."""

from __future__ import annotations

import ctypes
import socket

from ..kernels import library

_start, _end = library.gluon_gc_heartbeat, library.gluon_gc_heartbeat_end
_start.restype, _start.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_int)
_end.restype, _end.argtypes = None, (ctypes.c_void_p,)


class Heartbeat:
    """Sends an empty line at regular intervals, from a C++ thread of the library.

    A Python thread would send nothing while another thread holds the interpreter's lock.

    Parameters
    ----------
    link : socket
        The connection to the scheduler.
    seconds : float
        The interval.
    """

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self._thread = _start(link.fileno(), int(1000 * seconds))

    def end(self) -> None:
        """Stop sending. Call it before the socket is closed."""
        if self._thread:
            _end(self._thread)
            self._thread = None

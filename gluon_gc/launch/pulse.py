"""Signs of life of this process on its connection to the scheduler."""

from __future__ import annotations

import ctypes
import socket

from ..kernels import library

_start, _end = library.gluon_gc_pulse, library.gluon_gc_pulse_end
_start.restype, _start.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_int)
_end.restype, _end.argtypes = None, (ctypes.c_void_p,)


class Pulse:
    """Sends an empty line every so often, whatever Python does: a thread of the library sends it.

    Parameters
    ----------
    link : socket
    seconds : float
    """

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self._thread = _start(link.fileno(), int(1000 * seconds))

    def end(self) -> None:
        """Send no more; the socket can be closed then."""
        if self._thread:
            _end(self._thread)
            self._thread = None

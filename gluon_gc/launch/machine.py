"""Connects the workers of one machine, so that they can exchange bytes and share memory.

Worker 0 of the machine listens at an abstract Unix socket, and the others stay connected to it. The
shared memory has no name, so nothing remains after the last worker has ended, even if it was
killed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import struct
import time
from multiprocessing import reduction
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from .. import env
from ..env import Cluster

_LENGTH = struct.Struct("=Q")
_CREDENTIALS = struct.Struct("=3i")  # of a process: its pid, user and group
_PAUSE = 0.02  # seconds between two attempts to connect


class Machine:
    """The connections among the workers of a machine.

    The methods are collective: all workers of the machine call them in the same order.

    Parameters
    ----------
    cluster : Cluster
        Its `local_rank` and `local_size` are this worker's local rank and the number of workers.
    timeout : float
        Seconds in which all workers must connect.

    Attributes
    ----------
    rank, size : int
        The local rank of this worker, and the number of workers.
    links : dict
        Sockets by local rank. Worker 0 has one to every other worker, which has one to worker 0.

    Raises
    ------
    ConnectionError
        Some workers did not connect, two have the same rank, or a process belongs to another user.
    """

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.rank, self.size = cluster.local_rank, cluster.local_size
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        address = _address(cluster)
        self.links = {0: self._first(address)} if self.rank else self._others(address)
        os.register_at_fork(after_in_child=self.close)  # or a child would keep them open

    def gather(self, data: bytes) -> List[bytes]:
        """The data of all workers, by local rank. Blocks until all have called it."""
        if self.rank:
            (link,) = self.links.values()
            _send(link, data)
            return [_receive(link) for _ in range(self.size)]
        gathered = [data, *map(_receive, self.links.values())]
        for link in self.links.values():
            for piece in gathered:
                _send(link, piece)
        return gathered

    def share(self, num_bytes: int) -> np.ndarray:
        """Allocate memory that all workers can read and write. Blocks until all have called it.

        Returns
        -------
        ndarray
            Zeros, uint8, shape (num_bytes,).

        Raises
        ------
        OSError
            There is not enough memory.
        """
        if self.rank:
            memory = reduction.recv_handle(*self.links.values())
        else:
            memory = os.memfd_create("gluon_gc")
            os.posix_fallocate(memory, 0, num_bytes)  # or a lack of memory would cause SIGBUS later
            for link in self.links.values():
                reduction.send_handle(link, memory, None)
        shared = mmap.mmap(memory, num_bytes)
        os.close(memory)
        return np.frombuffer(shared, np.uint8)

    def close(self) -> None:
        """Close the connections. Shared memory exists as long as a worker uses it."""
        for link in self.links.values():
            link.close()

    def _others(self, address: bytes) -> Dict[int, socket.socket]:
        """Listen as worker 0, and return the connections to the other workers."""
        links: Dict[int, socket.socket] = {}
        with socket.socket(socket.AF_UNIX) as server:
            try:
                self._try(server.bind, address)
            except OSError:
                raise _twice(0) from None
            server.listen(self.size)
            while len(links) < self.size - 1:
                server.settimeout(max(_PAUSE, self._deadline - time.monotonic()))
                try:
                    rank, link = self._accepted(server)
                except (OSError, ValueError):  # a stranger connected, or nobody did
                    if time.monotonic() >= self._deadline:
                        raise self._missing({*range(1, self.size)} - links.keys()) from None
                    continue
                if rank in links:
                    raise _twice(rank)
                links[rank] = link
        return dict(sorted(links.items()))

    def _accepted(self, server: socket.socket) -> Tuple[int, socket.socket]:
        """The local rank of the next worker that connects, and the connection."""
        link, _ = server.accept()
        if not _is_ours(link):
            raise ConnectionError
        link.settimeout(self._timeout)
        rank = int(_receive(link))
        link.settimeout(None)
        return rank, link

    def _first(self, address: bytes) -> socket.socket:
        """Connect to worker 0."""
        link = socket.socket(socket.AF_UNIX)
        try:
            self._try(link.connect, address)
        except OSError:
            raise self._missing([0]) from None
        if not _is_ours(link):
            raise ConnectionError("all workers of a machine must run as the same user")
        _send(link, str(self.rank).encode())
        return link

    def _try(self, attempt: Callable[[bytes], Any], address: bytes) -> None:
        while True:
            try:
                return attempt(address)
            except OSError:
                if time.monotonic() >= self._deadline:
                    raise
                time.sleep(_PAUSE)

    def _missing(self, ranks: Sequence[int]) -> ConnectionError:
        names = ", ".join(map(str, sorted(ranks)))
        return ConnectionError(
            f"workers with BYTEPS_LOCAL_RANK {names} did not connect within {self._timeout:g} s, "
            f"of the {self.size} workers of this machine; workers in separate containers cannot "
            "share memory, and need 'hierarchical': False in compression_params"
        )


def _twice(rank: int) -> ConnectionError:
    return ConnectionError(f"two workers of this machine have BYTEPS_LOCAL_RANK {rank}")


def _address(cluster: Cluster) -> bytes:
    """The socket address at which a machine's workers of a cluster meet, unique to the job."""
    job = (
        cluster.root_uri,
        cluster.root_port,
        cluster.worker_id,
        env.get("GLUON_GC_SECRET"),
        env.get("GLUON_GC_RESTARTS"),
    )
    return b"\0gluon_gc " + hashlib.sha256(repr(job).encode()).hexdigest().encode()


def _is_ours(link: socket.socket) -> bool:
    """Whether the other end is a process of the same user, or of root."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return user in (0, os.getuid())


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(_LENGTH.pack(len(data)) + data)


def _receive(link: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return _exactly(link, length)


def _exactly(link: socket.socket, length: int) -> bytes:
    data = link.recv(length, socket.MSG_WAITALL) if length else b""
    if len(data) < length:
        raise ConnectionError("another worker of this machine has ended")
    return data

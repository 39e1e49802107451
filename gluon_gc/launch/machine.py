"""Connects the workers of one machine: they exchange bytes, share memory, and end together.

Worker 0 of the machine listens at an abstract Unix socket, and the others stay connected to it. The
shared memory has no name, so nothing remains after the last worker has ended, even if it was
killed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import socket
import struct
import threading
import time
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from .. import env
from ..env import Cluster
from .leaving import die, left_early

_LENGTH = struct.Struct("=Q")
_CREDENTIALS = struct.Struct("=3i")  # of a process: its pid, user and group
_PAUSE = 0.02  # seconds between two attempts to connect
_MOST_BYTES = 4096  # limit of a reason
_TICK_MILLISECONDS = 500  # time between two looks at the workers that have left
_NOTICE_SECONDS = 10  # time in which the thread must notice the end of a worker


class Machine:
    """The connections among a machine's workers, which must connect within `timeout` seconds.

    The methods are collective: all workers of the machine call them in the same order.
    ConnectionError is raised if workers do not connect, two have the same rank, or a process
    belongs to another user.
    """

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.rank, self.size = cluster.local_rank, cluster.local_size
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        address = _address(cluster)
        self.links = {0: self._first(address)} if self.rank else self._others(address)
        os.register_at_fork(after_in_child=self.close)  # or a child would keep them open

    def gather(self, data: bytes) -> list[bytes]:
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
        """Allocate zeros (uint8) that all workers can read and write.

        Blocks until all have called it. Raises OSError if there is not enough memory.
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

    def _others(self, address: bytes) -> dict[int, socket.socket]:
        """Listen as worker 0, and return the connections to the other workers."""
        links: dict[int, socket.socket] = {}
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

    def _accepted(self, server: socket.socket) -> tuple[int, socket.socket]:
        """The local rank of the next worker that connects, and the connection."""
        link, _ = server.accept()
        if not _is_ours(link):
            raise ConnectionError
        link.settimeout(self._timeout)
        rank = int(_receive(link))
        link.settimeout(None)
        return rank, link

    def _first(self, address: bytes) -> socket.socket:
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
    """The address of worker 0's socket, unique to the machine and the job."""
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


class Neighbours:
    """A thread that ends this process, with a reason, if another worker ends too early.

    It needs no scheduler. All workers create this object together.
    """

    def __init__(self, machine: Machine) -> None:
        self._name = f"worker {machine.rank}"
        self._machine = machine
        self._words = machine.share(_MOST_BYTES)  # the reason, from the first worker that sets it
        self._left = machine.share(4 * machine.size).view(np.uint32)  # 1 + a worker's exchanges
        self._exchanges = 0
        self._leaving = self._abandons = False
        self._names = {link.fileno(): f"worker {rank}" for rank, link in machine.links.items()}
        self._thread = threading.Thread(target=self._watch, name="gluon_gc neighbours", daemon=True)
        self._thread.start()

    @contextmanager
    def noticing_ends(self) -> Iterator[None]:
        """Report a connection error in the block as the end of another worker, if it is one."""
        try:
            yield
        except (ConnectionError, EOFError):
            self._thread.join(_NOTICE_SECONDS)
            raise
        self._check()  # the block may have received the message of a worker that leaves

    def next_exchange(self) -> None:
        """Count an exchange that needs all workers. Ends the process if a worker has left."""
        self._exchanges += 1
        self._check()

    def leave(self) -> None:
        """Wait until all workers leave. Their ends are no failures from now on."""
        self._leaving = True
        self._left[self._machine.rank] = 1 + self._exchanges
        with self.noticing_ends():
            self._machine.gather(b"")
        if not self._left.all():  # another worker has begun an exchange instead, and ends all
            self._thread.join()

    def abandon(self, reason: str) -> None:
        """End all other workers, because this process ends."""
        self._abandons = True
        self._set_reason(f"{self._name} has failed: {reason}")

    def _watch(self) -> None:
        ends = select.poll()
        for descriptor in self._names:
            ends.register(descriptor, select.POLLRDHUP)
        ended: list[tuple[int, int]] = []
        while not ended:
            self._check()
            if self._left.all():
                return
            ended = ends.poll(_TICK_MILLISECONDS)
        ((descriptor, _), *_) = ended
        if not self._leaving:
            # The failed worker may have set its own reason already. Then this one is dropped.
            self._set_reason(f"{self._names[descriptor]} is gone")
        self._end_with_reason()

    def _check(self) -> None:
        """End the process if it has begun an exchange without a worker that has left."""
        for rank, left in enumerate(self._left.tolist()):
            if left and self._exchanges >= left:
                self._set_reason(left_early(f"worker {rank}", left - 1, self._name))
                self._end_with_reason()

    def _end_with_reason(self) -> None:
        if self._reason() and not self._abandons:
            die(f"{self._name} ends: {self._reason()}")

    def _set_reason(self, words: str) -> None:
        if not self._reason():
            data = words.encode()[:_MOST_BYTES]
            self._words[: len(data)] = np.frombuffer(data, np.uint8)

    def _reason(self) -> str:
        return self._words.tobytes().rstrip(b"\0").decode(errors="ignore")

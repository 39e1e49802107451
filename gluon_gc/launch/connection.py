"""A node's connection to the scheduler, which is made anew when the network resets it.

A process that ends closes its connections, so the end of one is the end of the other process. An
error comes from the network: the node then connects again, to a port that the scheduler has for
this, and shows a ticket. Both ends send again what the other has not heard.
"""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import Any, AsyncIterator, Dict, Iterator, List

from .. import env

LINE_BYTES = 8192
"""The most that a line may have."""
_PATIENCE = 10  # seconds for a ticket, from one who has connected
_STRANGERS = 64  # who may be connected and have shown no ticket yet
_PAUSE = 0.2  # seconds between attempts to connect


def line(message: Dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def keep_alive(link: socket.socket) -> None:
    """Let a connection fail once the other machine has been silent for PS_HEARTBEAT_TIMEOUT."""
    timeout = env.heartbeat_timeout()
    if timeout:
        probes = min(timeout, 4)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, timeout // probes))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, timeout // probes))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * timeout)


def _was_reset(error: OSError) -> bool:
    """Whether the other machine may be there, rather than silent for too long already."""
    return error.errno != errno.ETIMEDOUT


class NodeEnd:
    """A worker's or server's end. One thread reads it, and any may write.

    Parameters
    ----------
    link : socket
        Connected to the scheduler.
    ticket : dict
        What `Door.ticket` gave this node.
    """

    def __init__(self, link: socket.socket, ticket: Dict[str, Any]) -> None:
        self._link = link
        self._ticket = ticket["ticket"]
        self._door = (link.getpeername()[0], ticket["port"])
        self._sent: List[bytes] = []
        self._heard = 1  # what the ticket came in
        self._closed = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Send a line, now or when there is a connection again."""
        with self._lock:
            self._sent.append(data)
            with suppress(OSError):  # `lines` sees it too
                self._link.sendall(data)

    def lines(self) -> Iterator[bytes]:
        """What the scheduler sends, until it is gone or this end is closed."""
        while True:
            try:
                yield from self._received()
                return
            except OSError as error:
                if not _was_reset(error) or not self._connect_again():
                    return

    def _received(self) -> Iterator[bytes]:
        rest = b""
        while True:
            data = self._link.recv(LINE_BYTES)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for text in whole:
                self._heard += 1
                yield text

    def _connect_again(self) -> bool:
        deadline = time.monotonic() + env.get("PS_HEARTBEAT_TIMEOUT")
        while not self._closed and time.monotonic() < deadline:
            try:
                link = socket.create_connection(self._door, deadline - time.monotonic() + _PAUSE)
            except ConnectionRefusedError:
                return False  # the scheduler has ended
            except OSError:
                time.sleep(_PAUSE)
                continue
            try:
                return self._show_ticket(link)
            except (OSError, ValueError):
                link.close()
                time.sleep(_PAUSE)
        return False

    def _show_ticket(self, link: socket.socket) -> bool:
        keep_alive(link)
        link.sendall(line({"ticket": self._ticket, "heard": self._heard}))
        with link.makefile("rb", buffering=0) as answer:
            heard = int(answer.readline())
        link.settimeout(None)
        with self._lock:
            self._link.close()
            self._link = link
            with suppress(OSError):  # it is reset once more
                link.sendall(b"".join(self._sent[heard:]))
        return True

    def close(self) -> None:
        """Close it for good; a child process closes its copy."""
        self._closed = True
        self._link.close()


class SchedulerEnd:
    """The scheduler's end; lives in its asyncio loop.

    Attributes
    ----------
    machine : str
        The node's address; empty if it is the scheduler's own.
    silent : bool
        Whether the node has not been heard of for too long, rather than ended.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer.get_extra_info("socket"))
        own, other = (writer.get_extra_info(end)[0] for end in ("sockname", "peername"))
        self.machine = other if other != own else ""
        self.silent = False
        self._reader = reader
        self._writer = writer
        self._sent: List[bytes] = []
        self._heard = 0
        self._returns: asyncio.Queue = asyncio.Queue()
        self._has_ticket = False

    def write(self, data: bytes) -> None:
        """Send a line, now or when there is a connection again."""
        self._sent.append(data)
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until what was written is on its way."""
        await self._writer.drain()

    def close(self) -> None:
        """Close it once what was written is on its way."""
        self._writer.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """What the node sends, until it is gone."""
        while True:
            was_reset = False
            try:
                async for text in self._reader:
                    if text.endswith(b"\n"):
                        self._heard += 1
                        yield text
            except OSError as error:
                was_reset = _was_reset(error) and self._has_ticket
                self.silent = not _was_reset(error)
            if not was_reset and self._returns.empty():
                return
            try:
                await asyncio.wait_for(self._return(), env.get("PS_HEARTBEAT_TIMEOUT"))
            except asyncio.TimeoutError:
                self.silent = True
                return

    def ticket(self) -> str:
        """What the node shows when it returns; from now on it is waited for."""
        self._has_ticket = True
        return secrets.token_hex(16)

    def returns(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: int
    ) -> None:
        """The node has connected again, and had heard so many lines before."""
        self._returns.put_nowait((reader, writer, heard))
        self._writer.transport.abort()  # the scheduler may not have seen yet that it is no more

    async def _return(self) -> None:
        self._reader, self._writer, heard = await self._returns.get()
        self._writer.write(b"%d\n" % self._heard + b"".join(self._sent[heard:]))


class Door:
    """The port to which nodes return; lives in the scheduler's asyncio loop."""

    def __init__(self) -> None:
        self._ends: Dict[str, SchedulerEnd] = {}
        self._port = 0
        self._strangers = 0

    async def open(self, host: str) -> None:
        """Listen at an address of this machine."""
        self._server = await asyncio.start_server(self._meet, host, 0, limit=LINE_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]

    def ticket(self, end: SchedulerEnd) -> Dict[str, Any]:
        """What the node at this end needs to return."""
        ticket = end.ticket()
        self._ends[ticket] = end
        return {"port": self._port, "ticket": ticket}

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS:
            writer.close()
            return
        self._strangers += 1
        try:
            keep_alive(writer.get_extra_info("socket"))
            shown = json.loads(await asyncio.wait_for(reader.readline(), _PATIENCE))
            self._ends[shown["ticket"]].returns(reader, writer, int(shown["heard"]))
        except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError):
            writer.close()
        finally:
            self._strangers -= 1

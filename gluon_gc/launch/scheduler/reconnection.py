"""Reconnects a node to the scheduler after the network has reset their connection.

The node connects to a separate port of the scheduler, and proves that it is the other end of the
session. Then both ends send the lost lines again.

A reset alone does not show whether the network or the end of the process caused it, because the
kernel also resets the connections of an ended process if they have unread data. So each node keeps
a second connection to that port, on which the scheduler sends nothing. If that connection ends, the
process has ended. If it is reset, the network did it.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from typing import TYPE_CHECKING, Any, Mapping

from ... import env
from .protocol import LINE_BYTES, Session, nonce, parsed, plain

if TYPE_CHECKING:
    from .scheduler import Node

_PROOF_SECONDS = 10  # for the proof of a node that has connected
_STRANGERS = 64  # the most connections without a proof
_PAUSE = 0.2  # seconds between attempts to connect
_LIVES = "lives"  # the purpose of the connection that shows the end of a node


def come_back(address: tuple[str, int], name: str, session: Session) -> tuple[socket.socket, int]:
    """Reconnect a node. Also returns how many of the node's lines the scheduler has received.

    Raises OSError if the scheduler has ended, or cannot be reached within PS_HEARTBEAT_TIMEOUT.
    """
    return _introduced(address, name, session.received, session)


def show_life(address: tuple[str, int], name: str, session: Session) -> socket.socket:
    """Open the connection that ends with this process. Raises OSError as `come_back` does."""
    return _introduced(address, name, _LIVES, session)[0]


def _introduced(
    address: tuple[str, int], name: str, purpose: Any, session: Session
) -> tuple[socket.socket, int]:
    deadline = time.monotonic() + env.get("PS_HEARTBEAT_TIMEOUT")
    while True:
        left = deadline - time.monotonic()
        link = None
        try:
            link = socket.create_connection(address, max(_PAUSE, left))
            proof = session.proof(_line(link)["nonce"], name, purpose)
            link.sendall(plain({"name": name, "what": purpose, "proof": proof}))
            return link, 0 if purpose == _LIVES else int(_line(link)["received"])
        except ConnectionRefusedError:
            raise  # the scheduler has ended
        except (OSError, ValueError, KeyError):
            if link is not None:
                link.close()
            if left <= 0:
                raise socket.timeout from None
            time.sleep(_PAUSE)


def _line(link: socket.socket) -> dict[str, Any]:
    with link.makefile("rb", buffering=0) as lines:
        return parsed(lines.readline(LINE_BYTES))


class ReturnPort:
    """The port at which nodes reconnect, in the scheduler's asyncio loop."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._strangers = 0

    async def open(self, host: str) -> None:
        self._server = await asyncio.start_server(self._accept, host, 0, limit=LINE_BYTES)

    @property
    def number(self) -> int:
        return self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS:
            writer.close()
            return
        self._strangers += 1
        try:
            await asyncio.wait_for(self._admit(reader, writer), _PROOF_SECONDS)
        except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError):
            writer.close()
        finally:
            self._strangers -= 1

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = nonce()
        writer.write(plain({"nonce": challenge}))
        shown: dict[str, Any] = parsed(await reader.readline())
        name, purpose = shown["name"], shown["what"]
        node = self._nodes[name]
        if not hmac.compare_digest(node.session().proof(challenge, name, purpose), shown["proof"]):
            raise ValueError
        if purpose == _LIVES:
            node.watch_life(reader, writer)
        else:
            node.reconnect(reader, writer, int(purpose))

"""How a node comes back to the scheduler when the network has reset their connection.

A process that ends closes its connections, so the end of one is the end of the other process. An
error comes from the network: the node then connects again, to a port that the scheduler has for
this, and proves that it is the other end of the session. Both send again what was lost.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from typing import Any, Callable, Dict, Tuple

from .. import env
from .session import LINE_BYTES, Session, nonce, parsed, plain

_PATIENCE = 10  # seconds for a proof, from one who has connected
_STRANGERS = 64  # who may be connected and have proved nothing yet
_PAUSE = 0.2  # seconds between attempts to connect


def come_back(address: Tuple[str, int], name: str, session: Session) -> Tuple[socket.socket, int]:
    """A node's new connection, and how many of its lines the scheduler has received.

    Raises
    ------
    OSError
        The scheduler has ended, or cannot be reached within PS_HEARTBEAT_TIMEOUT.
    """
    deadline = time.monotonic() + env.get("PS_HEARTBEAT_TIMEOUT")
    while True:
        left = deadline - time.monotonic()
        link = None
        try:
            link = socket.create_connection(address, max(_PAUSE, left))
            return link, _prove(link, name, session)
        except ConnectionRefusedError:
            raise  # nobody listens any more
        except (OSError, ValueError, KeyError):
            if link is not None:
                link.close()
            if left <= 0:
                raise socket.timeout from None
            time.sleep(_PAUSE)


def _prove(link: socket.socket, name: str, session: Session) -> int:
    with link.makefile("rb", buffering=0) as lines:
        challenge = parsed(lines.readline(LINE_BYTES))["nonce"]
        received = session.received
        proof = session.proof(challenge, name, received)
        link.sendall(plain({"name": name, "received": received, "proof": proof}))
        return int(parsed(lines.readline(LINE_BYTES))["received"])


class Door:
    """The port to which nodes come back; lives in the scheduler's asyncio loop.

    Parameters
    ----------
    session : callable
        The session of the node of a name; KeyError if there is none.
    let_in : callable
        Takes a name, a reader, a writer, and how many lines the node has received.
    """

    def __init__(
        self,
        session: Callable[[str], Session],
        let_in: Callable[[str, asyncio.StreamReader, asyncio.StreamWriter, int], None],
    ) -> None:
        self._session, self._let_in = session, let_in
        self._strangers = 0

    async def open(self, host: str) -> int:
        """Listen at an address of this machine; the port."""
        self._server = await asyncio.start_server(self._meet, host, 0, limit=LINE_BYTES)
        return self._server.sockets[0].getsockname()[1]

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS:
            writer.close()
            return
        self._strangers += 1
        try:
            await asyncio.wait_for(self._admit(reader, writer), _PATIENCE)
        except (asyncio.TimeoutError, OSError, ValueError, KeyError, TypeError):
            writer.close()
        finally:
            self._strangers -= 1

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = nonce()
        writer.write(plain({"nonce": challenge}))
        shown: Dict[str, Any] = parsed(await reader.readline())
        name, received = shown["name"], int(shown["received"])
        proof = self._session(name).proof(challenge, name, received)
        if not hmac.compare_digest(proof, shown["proof"]):
            raise ValueError
        self._let_in(name, reader, writer, received)

"""The sealed lines of a connection between a node and the scheduler, which share a secret.

Each end begins with a nonce. A line is the HMAC-SHA256 of a message, and then the message in JSON.
The key is made from GLUON_GC_SECRET and both nonces, and the code covers the number of the line. So
no line can be forged, left out, or repeated on this or another connection. Without a secret, the
key is made from an empty one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections import deque
from typing import Any, Deque, Dict, Optional

LINE_BYTES = 8192
"""The most bytes of a line."""
_KEPT = 1000  # lines that can be sent again: many more than are in flight at any time
_HEX = 64  # digits of a seal


def nonce() -> str:
    """The random text with which an end of a connection begins."""
    return secrets.token_hex(16)


def plain(message: Dict[str, Any]) -> bytes:
    """A message as a line without a seal."""
    return json.dumps(message).encode() + b"\n"


class OtherSecretError(ValueError):
    """A line was sealed with another secret, or not by the other end of its connection."""


class Session:
    """One end of a connection.

    Parameters
    ----------
    secret : str, optional
        GLUON_GC_SECRET.
    node, scheduler : str
        The nonces of both ends.
    is_node : bool
        Whether this end is the node's.
    """

    def __init__(self, secret: Optional[str], node: str, scheduler: str, is_node: bool) -> None:
        nonces = f"{node} {scheduler}".encode()
        self._key = hmac.digest(os.fsencode(secret or ""), nonces, "sha256")
        self._key_of_none = hmac.digest(b"", nonces, "sha256")
        self._ends = ("node", "scheduler") if is_node else ("scheduler", "node")
        self._sent = self._received = 0
        self._kept: Deque[bytes] = deque(maxlen=_KEPT)

    def seal(self, message: Dict[str, Any]) -> bytes:
        """The next line to send."""
        text = json.dumps(message).encode()
        self._sent += 1
        self._kept.append(_mac(self._key, self._ends[0], self._sent, text) + text + b"\n")
        return self._kept[-1]

    def after(self, received: int) -> bytes:
        """The lines after number `received`, to be sent again; ValueError if they are not kept."""
        lost = self._sent - received
        if not 0 <= lost <= len(self._kept):
            raise ValueError
        return b"".join(list(self._kept)[len(self._kept) - lost :])

    @property
    def received(self) -> int:
        """The number of lines that have come so far."""
        return self._received

    def proof(self, *words: Any) -> str:
        """A code for these words that only the two ends of this session can make."""
        return _mac(self._key, "either", 0, " ".join(map(str, words)).encode()).decode()

    def open(self, line: bytes) -> Dict[str, Any]:
        """The message of the next line that has come.

        Raises
        ------
        OtherSecretError
            The line was sealed with "no" or "another" secret, as the error's text says.
        ValueError
            The line is no message.
        """
        seal, text = line[:_HEX], line[_HEX:].rstrip(b"\n")
        self._received += 1
        if not self._is_seal(seal, self._key, text):
            no_secret = self._is_seal(seal, self._key_of_none, text)
            raise OtherSecretError("no" if no_secret else "another")
        return parsed(text)

    def _is_seal(self, seal: bytes, key: bytes, text: bytes) -> bool:
        return hmac.compare_digest(seal, _mac(key, self._ends[1], self._received, text))


def unsealed(line: bytes) -> Dict[str, Any]:
    """The message of a line, whatever its seal; ValueError if it is none."""
    return parsed(line[_HEX:])


def parsed(text: bytes) -> Dict[str, Any]:
    """The message in a line of JSON; ValueError if it is none."""
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError from None
    if not isinstance(message, dict):
        raise ValueError
    return message


def _mac(key: bytes, sender: str, number: int, text: bytes) -> bytes:
    return hmac.new(key, f"{sender} {number} ".encode() + text, hashlib.sha256).hexdigest().encode()

"""The lines of a connection between a node and the scheduler, which say that both have one secret.

Each end begins with a nonce. A line is a message in JSON behind its HMAC-SHA256, whose key comes of
GLUON_GC_SECRET and both nonces, and which counts the lines: none can be forged, left out, or sent
again here or on another connection. Without a secret, the key comes of an empty one.
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
"""The most that a line may have."""
_KEPT = 1000  # lines that can be sent again: many more than are on the way at any time
_HEX = 64  # digits of a seal


def nonce() -> str:
    """What a connection begins with at one of its ends."""
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
        Which of them this is.
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
        """The lines to send again to one who has received so many; ValueError if it never can."""
        lost = self._sent - received
        if not 0 <= lost <= len(self._kept):
            raise ValueError
        return b"".join(list(self._kept)[len(self._kept) - lost :])

    @property
    def received(self) -> int:
        """How many lines have come so far."""
        return self._received

    def proof(self, *words: object) -> str:
        """What only the two ends of this session can say of these words, on any connection."""
        return _mac(self._key, "either", 0, " ".join(map(str, words)).encode()).decode()

    def open(self, line: bytes) -> Dict[str, Any]:
        """The message of the next line that has come.

        Raises
        ------
        OtherSecretError
            Its text says which it has: "no" or "another".
        ValueError
            It is no message.
        """
        seal, text = line[:_HEX], line[_HEX:].rstrip(b"\n")
        self._received += 1
        about = self._ends[1], self._received, text
        if not hmac.compare_digest(seal, _mac(self._key, *about)):
            no_secret = hmac.compare_digest(seal, _mac(self._key_of_none, *about))
            raise OtherSecretError("no" if no_secret else "another")
        return parsed(text)


def unsealed(line: bytes) -> Dict[str, Any]:
    """The message of a line, whoever has sealed it; ValueError if it is none."""
    return parsed(line[_HEX:])


def parsed(text: bytes) -> Dict[str, Any]:
    """What a line of JSON says; ValueError if that is no message."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError from None
    if not isinstance(found, dict):
        raise ValueError
    return found


def _mac(key: bytes, sender: str, number: int, text: bytes) -> bytes:
    return hmac.new(key, f"{sender} {number} ".encode() + text, hashlib.sha256).hexdigest().encode()

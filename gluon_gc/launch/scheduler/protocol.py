"""The lines between a node and the scheduler: their signatures, and the hello that comes first.

Each end first sends a nonce. Then each line is an HMAC-SHA256, the seal, and a message in JSON:

    key  = HMAC(GLUON_GC_SECRET, both nonces)
    seal = HMAC(key, sender, number of the line, message)

So nobody without the secret can forge a line, drop one, or repeat one on this or another
connection. Without GLUON_GC_SECRET, the secret is empty.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections import deque
from typing import Any

from ... import env
from ...version import __version__

LINE_BYTES = 8192
"""The largest number of bytes of a line."""
_KEPT = 1000  # sent lines that are kept to be sent again: far more than are ever in flight
_HEX = 64  # hexadecimal digits of a seal
_MOST = 65536  # limit of ranks and of workers on a machine; a larger value is no valid hello
FRAMEWORKS = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The frameworks that workers train with. All workers of a cluster have the same one."""
ZEROMQ = b"\xff"
"""The first byte of ZeroMQ, the protocol of MXNet's own nodes and of ps-lite's scheduler."""


def nonce() -> str:
    return secrets.token_hex(16)


def plain(message: dict[str, Any]) -> bytes:
    """A message as a line without a seal."""
    return json.dumps(message).encode() + b"\n"


class OtherSecretError(ValueError):
    """A line's seal is wrong: the sender has another secret, or is not the other end."""


class Session:
    """One end of a connection. It is given GLUON_GC_SECRET and the nonces of both ends."""

    def __init__(self, secret: str | None, node: str, scheduler: str, is_node: bool) -> None:
        nonces = f"{node} {scheduler}".encode()
        self._key = hmac.digest(os.fsencode(secret or ""), nonces, "sha256")
        self._key_of_none = hmac.digest(b"", nonces, "sha256")
        self._ends = ("node", "scheduler") if is_node else ("scheduler", "node")
        self._sent = self._received = 0
        self._kept: deque[bytes] = deque(maxlen=_KEPT)

    def seal(self, message: dict[str, Any]) -> bytes:
        """Seal a message. Returns the next line to send."""
        text = json.dumps(message).encode()
        self._sent += 1
        self._kept.append(_mac(self._key, self._ends[0], self._sent, text) + text + b"\n")
        return self._kept[-1]

    def after(self, received: int) -> bytes:
        """The sent lines after number `received`. Raises ValueError if they are not kept."""
        lost = self._sent - received
        if not 0 <= lost <= len(self._kept):
            raise ValueError
        return b"".join(list(self._kept)[len(self._kept) - lost :])

    @property
    def received(self) -> int:
        return self._received

    def proof(self, *words: Any) -> str:
        """An HMAC of these words, which only the two ends of this session can compute."""
        return _mac(self._key, "either", 0, " ".join(map(str, words)).encode()).decode()

    def open(self, line: bytes) -> dict[str, Any]:
        """Check the next received line, and return its message. ValueError: it is no message.

        OtherSecretError has the text "no" if the seal was made without a secret, and else
        "another".
        """
        seal, text = line[:_HEX], line[_HEX:].rstrip(b"\n")
        self._received += 1
        if not self._is_seal(seal, self._key, text):
            no_secret = self._is_seal(seal, self._key_of_none, text)
            raise OtherSecretError("no" if no_secret else "another")
        return parsed(text)

    def _is_seal(self, seal: bytes, key: bytes, text: bytes) -> bool:
        return hmac.compare_digest(seal, _mac(key, self._ends[1], self._received, text))


def unsealed(line: bytes) -> dict[str, Any]:
    """The message of a line, without a check of its seal. Raises ValueError if there is none."""
    return parsed(line[_HEX:])


def parsed(text: bytes) -> dict[str, Any]:
    """The message in a line of JSON. Raises ValueError if it is not a JSON object."""
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError from None
    if not isinstance(message, dict):
        raise ValueError
    return message


def _mac(key: bytes, sender: str, number: int, text: bytes) -> bytes:
    return hmac.new(key, f"{sender} {number} ".encode() + text, hashlib.sha256).hexdigest().encode()


def required_settings() -> dict[str, Any]:
    """The values that must be the same on all nodes, by name."""
    return {"version of gluon_gc": __version__, **env.shared_settings()}


def restarts() -> int | None:
    """The number of restarts of this node so far; None if bpslaunch does not restart it."""
    return env.get("GLUON_GC_RESTARTS")


def check_hello(hello: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless this is a valid hello of gluon_gc."""
    rank, local_size = hello["rank"], hello["local_size"]
    if hello["role"] not in ("worker", "server") or not isinstance(hello["settings"], dict):
        raise ValueError
    if hello["role"] == "worker":
        if type(rank) is not int or type(local_size) is not int:
            raise TypeError
        if hello["framework"] not in FRAMEWORKS:
            raise ValueError
        if hello["store"] is not None:
            host, port = hello["store"]
            if type(host) is not str or type(port) is not int:
                raise TypeError
        if not 0 <= rank < _MOST or not 0 < local_size < _MOST:
            raise ValueError

"""The handshake in which workers check that their settings agree.

Every worker pushes a message in JSON to every server. The server compares them and answers.
"""

from __future__ import annotations

import json

from mxnet.ndarray import NDArray

from ....agreement import Message, compare
from . import control_messages


def pack(message: Message) -> NDArray:
    """Pack a message for `Rows`: uint8, shape (bytes of a control message,)."""
    return control_messages.pack(json.dumps(message).encode())


def unpack(packed: NDArray) -> Message:
    """The reverse of `pack`."""
    return json.loads(control_messages.unpack(packed))


def answer(packed: NDArray) -> NDArray:
    """A server's answer to all workers' messages, shape (workers, bytes of a control message)."""
    return pack(compare([unpack(row) for row in packed]))

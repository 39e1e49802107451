"""Messages with which workers make sure that they fit together, as JSON.

Every worker pushes its own to every server, which compares the rows and answers.
"""

from __future__ import annotations

import json

from mxnet.ndarray import NDArray

from ....agreement import Message, compare
from . import control_messages


def pack(message: Message) -> NDArray:
    """A message as `Rows` send it: uint8, shape (bytes of a message,)."""
    return control_messages.pack(json.dumps(message).encode())


def unpack(packed: NDArray) -> Message:
    """The reverse of `pack`."""
    return json.loads(control_messages.unpack(packed))


def answer(packed: NDArray) -> NDArray:
    """A server's answer to the messages of all workers, shape (workers, bytes of a message)."""
    return pack(compare([unpack(row) for row in packed]))

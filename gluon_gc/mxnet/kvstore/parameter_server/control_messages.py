"""The messages in which workers compare facts, and the servers' answers.

Every worker pushes a message in JSON to every server. The server compares them and answers.
"""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .... import kernels
from ....exchange.agreement import Message, compare
from ...engine.operators import MessageRows

_LENGTH_BYTES = 4
_MOST = kernels.frame_bytes(64 * 256) - _LENGTH_BYTES
_MAX_BYTES = _MOST - _LENGTH_BYTES
ROWS = MessageRows(((_MOST, 0),))


def pack(message: Message) -> NDArray:
    """A message of fixed length for `Rows`, uint8: length, JSON, padding."""
    data = json.dumps(message).encode()
    if len(data) > _MAX_BYTES:
        raise ValueError(
            f"a message must have at most {_MAX_BYTES} bytes, got {len(data)}: {data[:200]!r}..."
        )
    length = np.uint32(_LENGTH_BYTES + len(data)).tobytes()
    padded = (length + data).ljust(_MOST, b"\0")
    return mx.nd.array(np.frombuffer(padded, np.uint8), dtype="uint8")


def unpack(packed: NDArray) -> Message:
    data = packed.asnumpy().ravel()
    (length,) = data[:_LENGTH_BYTES].view(np.uint32)
    return json.loads(data[_LENGTH_BYTES:length].tobytes())


def answer(packed: NDArray) -> NDArray:
    """A server's answer to all workers' messages, shape (workers, bytes of a message)."""
    return pack(compare([unpack(row) for row in packed]))

"""Control messages: short byte strings that workers and servers exchange under separate keys."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .... import kernels
from ...engine.operators import MessageRows

_LENGTH_BYTES = 4
_MOST = kernels.frame_bytes(64 * 256) - _LENGTH_BYTES
MAX_BYTES = _MOST - _LENGTH_BYTES
"""The most bytes of a message."""
ROWS = MessageRows(((_MOST, 0),))


def pack(data: bytes) -> NDArray:
    """Pack at most MAX_BYTES bytes into a message of fixed length: length, data, padding."""
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"a message must have at most {MAX_BYTES} bytes, got {len(data)}: {data[:200]!r}..."
        )
    length = np.uint32(_LENGTH_BYTES + len(data)).tobytes()
    padded = (length + data).ljust(_MOST, b"\0")
    return mx.nd.array(np.frombuffer(padded, np.uint8), dtype="uint8")


def unpack(message: NDArray) -> bytes:
    """The bytes in a message. The reverse of `pack`."""
    data = message.asnumpy().ravel()
    (length,) = data[:_LENGTH_BYTES].view(np.uint32)
    return data[_LENGTH_BYTES:length].tobytes()

"""Messages beside the gradients: bytes, in a key that each server has for them."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .... import kernels
from ...operators import MessageRows

_LENGTH_BYTES = 4
_MOST = kernels.frame_bytes(64 * 256) - _LENGTH_BYTES
MAX_BYTES = _MOST - _LENGTH_BYTES
ROWS = MessageRows(((_MOST, 0),))


def pack(data: bytes) -> NDArray:
    """At most MAX_BYTES bytes as a message, uint8, shape (its most bytes,)."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is over {MAX_BYTES}: {data[:200]!r}...")
    length = np.uint32(_LENGTH_BYTES + len(data)).tobytes()
    padded = (length + data).ljust(_MOST, b"\0")
    return mx.nd.array(np.frombuffer(padded, np.uint8), dtype="uint8")


def unpack(message: NDArray) -> bytes:
    """The bytes of a message."""
    data = message.asnumpy().ravel()
    (length,) = data[:_LENGTH_BYTES].view(np.uint32)
    return data[_LENGTH_BYTES:length].tobytes()

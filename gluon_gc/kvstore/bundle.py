"""Several chunks in one message: each collective costs a cycle of Horovod's."""

from __future__ import annotations

from typing import Iterator, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from .plan import Chunk

_BYTES = 16 * 2**20  # of values in a message


def groups(chunks: Sequence[Chunk]) -> Iterator[List[Chunk]]:
    """Chunks that travel together: neighbours, of at most _BYTES of values."""
    group: List[Chunk] = []
    total = 0
    for chunk in chunks:
        size = chunk.size * np.dtype(chunk.dtype).itemsize
        if group and total + size > _BYTES:
            yield group
            group, total = [], 0
        group.append(chunk)
        total += size
    if group:
        yield group


def by_dtype(chunks: Sequence[Chunk]) -> Iterator[List[Chunk]]:
    """Groups of chunks of one dtype."""
    for dtype in sorted({chunk.dtype for chunk in chunks}):
        yield from groups([chunk for chunk in chunks if chunk.dtype == dtype])


def used(chunk: Chunk, payload: NDArray) -> bytes:
    """The bytes of a payload that are in use."""
    data = payload.asnumpy()
    return data[: chunk.params.used_bytes(data)].tobytes()


def split(chunks: Sequence[Chunk], data: bytes) -> Iterator[np.ndarray]:
    """The payloads of chunks that lie one behind the other, uint8."""
    rest = np.frombuffer(data, np.uint8)
    for chunk in chunks:
        most = chunk.params.payload_bytes(chunk.size, chunk.dtype)
        length = chunk.params.used_bytes(rest[:most])
        yield rest[:length]
        rest = rest[length:]


def rows(chunk: Chunk, payloads: Sequence[np.ndarray]) -> NDArray:
    """Payloads as the rows of an array, uint8, shape (payloads, the most bytes of one)."""
    most = chunk.params.payload_bytes(chunk.size, chunk.dtype)
    array = np.zeros((len(payloads), most), np.uint8)
    for row, payload in zip(array, payloads):
        row[: payload.size] = payload
    return mx.nd.array(array, dtype="uint8")

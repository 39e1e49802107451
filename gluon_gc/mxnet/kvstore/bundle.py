"""Several messages in one collective: each costs a cycle of Horovod's."""

from __future__ import annotations

from typing import Iterator, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ..channel import Channel

_BYTES = 16 * 2**20  # of values in a collective


def groups(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """Messages that travel together: neighbours, of at most _BYTES of values."""
    group: List[Channel] = []
    total = 0
    for channel in channels:
        size = channel.size * np.dtype(channel.dtype).itemsize
        if group and total + size > _BYTES:
            yield group
            group, total = [], 0
        group.append(channel)
        total += size
    if group:
        yield group


def by_dtype(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """Groups of messages of one dtype."""
    for dtype in sorted({channel.dtype for channel in channels}):
        yield from groups([channel for channel in channels if channel.dtype == dtype])


def used(channel: Channel, message: NDArray) -> bytes:
    """The bytes in use of a message's payloads, which lie side by side, each with room for most."""
    if channel.chunks[0].rows:  # most of the room is empty, and would take longer than all else
        message = message[: channel.codec.codecs[0].used(message[:4].asnumpy())]
    payload, parts, at = message.asnumpy(), [], 0
    for codec in channel.codec.codecs:
        room = payload[at : at + codec.payload_bytes]
        parts.append(room[: codec.used(room)].tobytes())
        at += codec.payload_bytes
    return b"".join(parts)


def rows(channels: Sequence[Channel], count: int, data: bytes) -> Iterator[Tuple[Channel, NDArray]]:
    """Each channel's messages as uint8, shape (count, payload_bytes).

    `data` has what is in use of the first message of each channel, then of the second of each, and
    so on.
    """
    rest = np.frombuffer(data, np.uint8)
    arrays = [np.zeros((count, channel.codec.payload_bytes), np.uint8) for channel in channels]
    for number in range(count):
        for channel, array in zip(channels, arrays):
            at = 0
            for codec in channel.codec.codecs:
                length = codec.used(rest[: codec.payload_bytes])
                array[number, at : at + length] = rest[:length]
                rest, at = rest[length:], at + codec.payload_bytes
    for channel, array in zip(channels, arrays):
        yield channel, mx.nd.from_numpy(array)

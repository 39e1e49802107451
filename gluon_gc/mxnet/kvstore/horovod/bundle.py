"""Several messages in one collective: each costs a cycle of Horovod's."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ... import operators
from ...channel import Channel
from ...operators import MessageRows

_VALUES = 16 * 2**20  # bytes of values in a collective, at most
_LEAST = 256 * 2**10  # bytes that travel in it, which may take more values

Parts = Tuple[Tuple[int, Optional[int]], ...]
"""Of a message, as `MessageRows` has them."""


def groups(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """Messages that travel together: neighbours, of _VALUES, or of more up to _LEAST."""
    group: List[Channel] = []
    values = travels = 0
    for channel in channels:
        size = channel.size * np.dtype(channel.dtype).itemsize
        if group and values + size > _VALUES and travels >= _LEAST:
            yield group
            group, values, travels = [], 0, 0
        group.append(channel)
        values += size
        travels += channel.message_bytes
    if group:
        yield group


def by_dtype(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """Groups of messages of one dtype."""
    for dtype in sorted({channel.dtype for channel in channels}):
        yield from groups([channel for channel in channels if channel.dtype == dtype])


class Packed(NamedTuple):
    """Bytes for several places, or from them.

    Attributes
    ----------
    data : NDArray
        uint8, with room for the most that it can be: the bytes of each place, one after the other.
    splits : NDArray
        int32: how many bytes of it each place has.
    """

    data: NDArray
    splits: NDArray


def nothing(places: int) -> Packed:
    """No bytes for any place."""
    return Packed(mx.nd.zeros(1, dtype="uint8"), mx.nd.zeros(places, dtype="int32"))


class Bundle:
    """The messages of these channels as they travel together, without empty room where it matters.

    Parameters
    ----------
    channels : sequence of Channel
        With codecs.

    Attributes
    ----------
    channels : list of Channel
    room : int
        The most bytes that all of them take.
    varies : bool
        Whether they may take less.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = list(channels)
        parts = [_parts(channel) for channel in channels]
        self.room = sum(most for message in parts for most, _ in message)
        self.varies = any(at is not None for message in parts for _, at in message)
        listed = MessageRows(tuple(part for message in parts for part in message)).listed()
        self._told = {**listed, "counts": operators.listed(len(message) for message in parts)}

    def pack(self, messages: Sequence[NDArray], shares: Sequence[int]) -> Packed:
        """All messages, of which each place gets as many as `shares` says, in their order."""
        if not self.channels:
            return nothing(len(shares))
        shared = operators.listed(shares)
        return Packed(*operators.call("bundle", messages, **self._told, shares=shared))

    def unpack(self, packed: Packed, count: int) -> List[NDArray]:
        """Of each channel the messages, uint8, shape (count, payload_bytes).

        `packed` has the first message of each channel, then the second of each, and so on.
        """
        if not self.channels:
            return []
        messages = operators.call("unbundle", packed, **self._told, count=count)
        return messages if isinstance(messages, list) else [messages]


def _parts(channel: Channel) -> Parts:
    """Those of its messages: of payloads that are full but in rare cases, all room travels."""
    rows = channel.codec.rows()
    return tuple((most, None) for most, _ in rows.parts) if rows.in_one else rows.parts


def repeated(packed: Packed, places: int) -> Packed:
    """All of it for each place."""
    return Packed(*operators.call("repeat", packed, copies=places))

"""Packs several messages into one collective, because each collective costs a Horovod cycle."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...engine import operators
from ...engine.operators import MessageRows
from ...exchange.channel import Channel

_VALUES = 16 * 2**20  # bytes of uncompressed values in a collective, at most
_LEAST = 256 * 2**10  # bytes that a collective sends; it may exceed _VALUES to reach them

Parts = Tuple[Tuple[int, Optional[int]], ...]
"""The parts of a message, as in `MessageRows`."""


def groups(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """Split messages into groups of neighbours, each for one collective.

    A group has at most _VALUES bytes of values, or more if it would send less than _LEAST bytes.
    """
    group: List[Channel] = []
    values = sent_bytes = 0
    for channel in channels:
        size = channel.size * np.dtype(channel.dtype).itemsize
        if group and values + size > _VALUES and sent_bytes >= _LEAST:
            yield group
            group, values, sent_bytes = [], 0, 0
        group.append(channel)
        values += size
        sent_bytes += channel.message_bytes
    if group:
        yield group


def by_dtype(channels: Sequence[Channel]) -> Iterator[List[Channel]]:
    """As `groups`, but all messages of a group have one dtype."""
    for dtype in sorted({channel.dtype for channel in channels}):
        yield from groups([channel for channel in channels if channel.dtype == dtype])


class Packed(NamedTuple):
    """Bytes for, or from, each member of a process set.

    Attributes
    ----------
    data : NDArray
        uint8: the bytes of each member, one after the other. It is as long as they can ever be.
    splits : NDArray
        int32, shape (members,): the number of bytes of each member.
    """

    data: NDArray
    splits: NDArray


def nothing(places: int) -> Packed:
    """A `Packed` without bytes, for this number of members."""
    return Packed(mx.nd.zeros(1, dtype="uint8"), mx.nd.zeros(places, dtype="int32"))


class Bundle:
    """Packs the messages of channels. Only used bytes travel, if payloads are often not full.

    Parameters
    ----------
    channels : sequence of Channel
        Each has a codec.

    Attributes
    ----------
    channels : list of Channel
    room : int
        The most bytes of one message of each channel.
    varies : bool
        Whether the messages may have fewer bytes.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = list(channels)
        parts = [_parts(channel) for channel in channels]
        self.room = sum(most for message in parts for most, _ in message)
        self.varies = any(at is not None for message in parts for _, at in message)
        listed = MessageRows(tuple(part for message in parts for part in message)).listed()
        counts = operators.listed(len(message) for message in parts)
        self._layout = {**listed, "counts": counts}  # attributes of the operators

    def pack(self, messages: Sequence[NDArray], shares: Sequence[int]) -> Packed:
        """Pack one message of each channel. Member i gets the next `shares[i]` messages."""
        if not self.channels:
            return nothing(len(shares))
        shared = operators.listed(shares)
        return Packed(*operators.call("bundle", messages, **self._layout, shares=shared))

    def unpack(self, packed: Packed, count: int) -> List[NDArray]:
        """The `count` messages of each channel, uint8, shape (count, payload_bytes).

        `packed` has the first message of each channel, then the second of each, and so on.
        """
        if not self.channels:
            return []
        messages = operators.call("unbundle", packed, **self._layout, count=count)
        return messages if isinstance(messages, list) else [messages]


def _parts(channel: Channel) -> Parts:
    """The parts of a channel's messages. Payloads that are nearly always full travel whole."""
    rows = channel.codec.rows()
    return tuple((most, None) for most, _ in rows.parts) if rows.in_one else rows.parts


def repeated(packed: Packed, places: int) -> Packed:
    """All bytes of `packed` for each of `places` members."""
    return Packed(*operators.call("repeat", packed, copies=places))

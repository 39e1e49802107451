"""Groups of messages that share Horovod's collectives, because each collective costs a cycle.

Members of a process set are the workers that take part in a collective. This worker is one of them.
The methods are asynchronous: they queue operations on MXNet's engine and return at once.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Callable, Iterator, Mapping, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...engine import operators
from ...engine.operators import MessageRows
from ...exchange.channel import Channel
from ...exchange.coder import MessageCoder
from .process_set import Packed, ProcessSet

Messages = Mapping[Channel, NDArray]
_KNOWN_SETS = 16  # sets of messages whose groups are kept
_VALUES = 16 * 2**20  # bytes of uncompressed values in a collective, at most
_LEAST = 256 * 2**10  # bytes that a collective sends; it may exceed _VALUES to reach them

Parts = Tuple[Tuple[int, Optional[int]], ...]
"""The parts of a message, as in `MessageRows`."""


def in_groups(channels: Sequence[Channel]) -> Iterator[list[Channel]]:
    """Split messages into groups of neighbours, each for one collective.

    A group has at most _VALUES bytes of values, or more if it would send less than _LEAST bytes.
    """
    group: list[Channel] = []
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


def by_dtype(channels: Sequence[Channel]) -> Iterator[list[Channel]]:
    """As `in_groups`, but all messages of a group have one dtype."""
    for dtype in sorted({channel.dtype for channel in channels}):
        yield from in_groups([channel for channel in channels if channel.dtype == dtype])


def nothing(members: int) -> Packed:
    return Packed(mx.nd.zeros(1, dtype="uint8"), mx.nd.zeros(members, dtype="int32"))


class MessagePacker:
    """Packs the messages of channels. Only used bytes travel, if payloads are often not full."""

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

    def unpack(self, packed: Packed, count: int) -> list[NDArray]:
        """The `count` messages of each channel, uint8, shape (count, payload_bytes).

        `packed` has the first message of each channel, then the second of each, and so on.
        """
        if not self.channels:
            return []
        messages = operators.call("unbundle", packed, **self._layout, count=count)
        return messages if isinstance(messages, list) else [messages]


def _parts(channel: Channel) -> Parts:
    """The parts of a channel's messages. Payloads that are nearly always full travel whole."""
    rows = channel.coder.rows()
    return tuple((most, None) for most, _ in rows.parts) if rows.in_one else rows.parts


def repeated(packed: Packed, members: int) -> Packed:
    """All bytes of `packed` for each of this number of members."""
    return Packed(*operators.call("repeat", packed, copies=members))


class Alltoall:
    """Sends different bytes to each member. Horovod refuses a name that is still in use.

    All calls receive into the same arrays, so MXNet's engine finishes one exchange and its readers
    before it begins the next.
    """

    def __init__(self, process_set: ProcessSet, room: int, name: str) -> None:
        self._process_set, self._name = process_set, name
        data = mx.nd.empty(max(1, room), dtype="uint8")
        self._received = Packed(data, mx.nd.empty(process_set.size, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """Queue the exchange. Returns the bytes from each member, valid until the next call."""
        self._process_set.exchange(packed, self._received, self._name)
        return self._received


class ToAll:
    """Sends the packed messages of each member to all members.

    If the sizes are known in advance, it is an all-gather. The members then form a ring: each one
    sends to one neighbour only, so transfers do not compete for a link. Otherwise it is an
    alltoall.
    """

    def __init__(
        self, process_set: ProcessSet, packers: Sequence[MessagePacker], name: str
    ) -> None:
        self._process_set, self._name = process_set, name
        sizes = [packer.room for packer in packers]
        self._known = all(sizes) and not any(packer.varies for packer in packers)
        if self._known:
            data = mx.nd.empty(sum(sizes), dtype="uint8")
            self._received = Packed(data, mx.nd.array(sizes, dtype="int32"))
        else:
            self._alltoall = Alltoall(process_set, sum(sizes), name)

    def __call__(self, packed: Packed) -> Packed:
        """Queue the exchange of this member's bytes. Returns all bytes in the members' order."""
        if not self._known:
            return self._alltoall(repeated(packed, self._process_set.size))
        self._process_set.all_gather(packed.data, self._received.data, self._name)
        return self._received


class TwoWay:
    """Messages that go to their owners, which send the aggregated ones to all members."""

    def __init__(
        self,
        process_set: ProcessSet,
        channels: Sequence[Channel],
        name: str,
        owners: Mapping[Channel, int],
        aggregators: Mapping[Channel, MessageCoder],
        threads: int,
    ) -> None:
        self._threads, self._size = threads, process_set.size
        owned = [[c for c in channels if owners[c] == owner] for owner in range(self._size)]
        self._shares = [len(part) for part in owned]
        self._all = MessagePacker([channel for part in owned for channel in part])
        packers = [MessagePacker(part) for part in owned]
        self._owned = packers[process_set.rank]
        self._aggregators = [aggregators[channel] for channel in owned[process_set.rank]]
        room = self._size * self._owned.room
        self._to_owners = Alltoall(process_set, room, f"to_owners.{name}")
        self._to_all = ToAll(process_set, packers, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        sent = [messages[channel] for channel in self._all.channels]
        self._received = self._to_owners(self._all.pack(sent, self._shares))

    def answer(self) -> None:
        """Aggregate the messages that this worker owns, and send the results to all members."""
        rows = self._owned.unpack(self._received, self._size)
        sums = [
            aggregator.aggregate(messages, self._size, self._threads)
            for aggregator, messages in zip(self._aggregators, rows)
        ]
        self._answers = self._to_all(self._owned.pack(sums, [len(sums)]))

    def receive(self) -> Messages:
        return dict(zip(self._all.channels, self._all.unpack(self._answers, 1)))


class Gathered:
    """A group of messages with a gather exchange: each message goes to all members."""

    def __init__(self, process_set: ProcessSet, channels: Sequence[Channel], name: str) -> None:
        self._size, self._packer = process_set.size, MessagePacker(channels)
        self._to_all = ToAll(process_set, [self._packer] * process_set.size, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        sent = [messages[channel] for channel in self._packer.channels]
        self._received = self._to_all(self._packer.pack(sent, [len(sent)]))

    def answer(self) -> None:
        """Do nothing: all members have all messages after `send`."""

    def receive(self) -> Messages:
        """For each channel, the messages of all members, in the order of their ranks."""
        rows = self._packer.unpack(self._received, self._size)
        return dict(zip(self._packer.channels, rows))


Group = Union[TwoWay, Gathered]


def numbered(
    make: Callable[[tuple[Channel, ...], int], list[Group]],
) -> Callable[[tuple[Channel, ...]], list[Group]]:
    """Keep the groups of a process set that `make` makes for the latest sets of messages.

    Each set of messages has a new number for the names of its groups, the same on all members. A
    model that uses other layers in each step may have any number of sets, and the buffers of a
    group need memory.
    """
    numbers = itertools.count()
    return lru_cache(maxsize=_KNOWN_SETS)(lambda channels: make(channels, next(numbers)))

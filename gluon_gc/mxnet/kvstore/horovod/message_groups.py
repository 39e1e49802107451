"""Groups of messages that share Horovod's collectives.

All methods are asynchronous: they queue operations on MXNet's engine and return at once.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Callable, List, Mapping, Sequence, Tuple, Union

from mxnet.ndarray import NDArray

from ...exchange.channel import Channel
from ...exchange.codec import MessageCodec
from .alltoall import Alltoall, Spread
from .bundle import Bundle
from .process_set import ProcessSet

Messages = Mapping[Channel, NDArray]
_KNOWN_SETS = 16  # sets of messages whose groups are kept


class TwoWay:
    """A group of messages with a two-way exchange.

    Each message has an owner among the members. The members send their payloads to the owner. It
    aggregates them, and sends the payload of the sum to all members.

    Parameters
    ----------
    process_set : ProcessSet
        The members. This worker is one of them.
    channels : sequence of Channel
    owners : mapping
        For each channel, the place of its owner in the process set.
    aggregators : mapping
        The aggregators of the channels that this worker owns.
    threads : int
        The number of threads of each aggregator.
    name : str
        The name of the group: unique, and the same on all members.
    """

    def __init__(
        self,
        process_set: ProcessSet,
        channels: Sequence[Channel],
        owners: Mapping[Channel, int],
        aggregators: Mapping[Channel, MessageCodec],
        threads: int,
        name: str,
    ) -> None:
        self._threads, self._size = threads, process_set.size
        owned = [[c for c in channels if owners[c] == owner] for owner in range(self._size)]
        self._shares = [len(part) for part in owned]
        self._all = Bundle([channel for part in owned for channel in part])
        bundles = [Bundle(part) for part in owned]
        self._owned = bundles[process_set.place]
        self._aggregators = [aggregators[channel] for channel in owned[process_set.place]]
        room = self._size * self._owned.room
        self._to_owners = Alltoall(process_set, room, f"to_owners.{name}")
        self._to_all = Spread(process_set, bundles, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Send the messages to their owners."""
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
        """The aggregated message of each channel."""
        return dict(zip(self._all.channels, self._all.unpack(self._answers, 1)))


class Gathered:
    """A group of messages with a gather exchange: each message goes to all members.

    Parameters
    ----------
    process_set : ProcessSet
        The members. This worker is one of them.
    channels : sequence of Channel
    name : str
        The name of the group: unique, and the same on all members.
    """

    def __init__(self, process_set: ProcessSet, channels: Sequence[Channel], name: str) -> None:
        self._size, self._bundle = process_set.size, Bundle(channels)
        self._to_all = Spread(process_set, [self._bundle] * process_set.size, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Send the messages to all members."""
        sent = [messages[channel] for channel in self._bundle.channels]
        self._received = self._to_all(self._bundle.pack(sent, [len(sent)]))

    def answer(self) -> None:
        """Do nothing: all members have all messages after `send`."""

    def receive(self) -> Messages:
        """For each channel, the messages of all members, in the order of their places."""
        rows = self._bundle.unpack(self._received, self._size)
        return dict(zip(self._bundle.channels, rows))


Group = Union[TwoWay, Gathered]


class KnownGroups:
    """The groups of a process set, for the sets of messages that were exchanged last.

    It keeps the latest _KNOWN_SETS sets only. A model that uses other layers in each step may have
    any number of sets, and the buffers of a group need memory.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[Tuple[Channel, ...], List[Group]] = OrderedDict()
        self._numbers = itertools.count()

    def of(self, channels: Tuple[Channel, ...], make: Callable[[int], List[Group]]) -> List[Group]:
        """The groups for this set of messages.

        Parameters
        ----------
        channels : tuple of Channel
        make : callable
            Makes the groups if the set is new. Its argument is a number for their names, unique in
            this process set.
        """
        if channels not in self._groups:
            if len(self._groups) == _KNOWN_SETS:
                self._groups.popitem(last=False)
            self._groups[channels] = make(next(self._numbers))
        self._groups.move_to_end(channels)
        return self._groups[channels]

    def forget(self, channel: Channel) -> None:
        """Drop the groups of all sets that have this channel."""
        for channels in [channels for channels in self._groups if channel in channels]:
            del self._groups[channels]

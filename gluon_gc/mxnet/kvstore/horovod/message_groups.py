"""Messages that travel together over Horovod: all that they do is queued on MXNet's engine."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Callable, List, Mapping, Sequence, Tuple, Union

from mxnet.ndarray import NDArray

from ...channel import Channel
from ...codec import MessageCodec
from .alltoall import Alltoall, Spread
from .bundle import Bundle
from .process_set import ProcessSet

Messages = Mapping[Channel, NDArray]
_KNOWN_SETS = 16  # of messages that are exchanged together, whose groups are kept


class TwoWay:
    """Messages that go to their owners, who sum and compress them, and come back to everybody.

    Parameters
    ----------
    process_set : ProcessSet
        Who exchanges them, with this worker.
    channels : sequence of Channel
    owners : mapping
        For each channel the place of its owner in the process set.
    aggregators : mapping
        Those of the channels that this worker owns.
    threads : int
        On how many each of them works.
    name : str
        The same on all workers, and of no other group.
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
        self._mine = bundles[process_set.place]
        self._aggregators = [aggregators[channel] for channel in owned[process_set.place]]
        room = self._size * self._mine.room
        self._to_owners = Alltoall(process_set, room, f"to_owners.{name}")
        self._to_all = Spread(process_set, bundles, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Bring the messages to their owners."""
        sent = [messages[channel] for channel in self._all.channels]
        self._came = self._to_owners(self._all.pack(sent, self._shares))

    def answer(self) -> None:
        """Bring the messages of the sums to everybody."""
        rows = self._mine.unpack(self._came, self._size)
        sums = [
            aggregator.aggregate(messages, self._size, self._threads)
            for aggregator, messages in zip(self._aggregators, rows)
        ]
        self._answers = self._to_all(self._mine.pack(sums, [len(sums)]))

    def receive(self) -> Messages:
        """The messages of the sums."""
        return dict(zip(self._all.channels, self._all.unpack(self._answers, 1)))


class Gathered:
    """Messages that go to everybody.

    Parameters
    ----------
    process_set : ProcessSet
        Who exchanges them, with this worker.
    channels : sequence of Channel
    name : str
        The same on all workers, and of no other group.
    """

    def __init__(self, process_set: ProcessSet, channels: Sequence[Channel], name: str) -> None:
        self._size, self._bundle = process_set.size, Bundle(channels)
        self._to_all = Spread(process_set, [self._bundle] * process_set.size, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Bring the messages to everybody."""
        sent = [messages[channel] for channel in self._bundle.channels]
        self._came = self._to_all(self._bundle.pack(sent, [len(sent)]))

    def answer(self) -> None:
        """Everybody has all messages already."""

    def receive(self) -> Messages:
        """All members' messages, by their places."""
        rows = self._bundle.unpack(self._came, self._size)
        return dict(zip(self._bundle.channels, rows))


Group = Union[TwoWay, Gathered]


class KnownGroups:
    """The groups of the sets of messages that were exchanged last in a process set.

    Not all sets are kept: where layers take turns there may be any number of them, and each group
    has room for what comes.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[Tuple[Channel, ...], List[Group]] = OrderedDict()
        self._numbers = itertools.count()

    def of(self, channels: Tuple[Channel, ...], make: Callable[[int], List[Group]]) -> List[Group]:
        """The groups of these messages, made if they are not known.

        Parameters
        ----------
        channels : tuple of Channel
        make : callable
            Makes the groups. It is given a number that no other groups of this process set have.
        """
        if channels not in self._groups:
            if len(self._groups) == _KNOWN_SETS:
                self._groups.popitem(last=False)
            self._groups[channels] = make(next(self._numbers))
        self._groups.move_to_end(channels)
        return self._groups[channels]

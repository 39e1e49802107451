"""Messages that travel together over Horovod: all that they do is queued on MXNet's engine."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence, Union

from mxnet.ndarray import NDArray

from ..channel import Channel
from ..codec import MessageCodec
from .alltoall import Alltoall, Spread
from .bundle import Bundle
from .circle import Team

Messages = Mapping[Channel, NDArray]


class TwoWay:
    """Messages that go to their owners, who sum and compress them, and come back to everybody.

    Parameters
    ----------
    team : Team
        Who exchanges them.
    channels : sequence of Channel
    owners : mapping
        For each channel the place of its owner in the team's circle.
    aggregators : mapping
        Those of the channels that this worker owns.
    threads : int
        On how many each of them works.
    name : str
        The same on all workers, and of no other group.
    """

    def __init__(
        self,
        team: Team,
        channels: Sequence[Channel],
        owners: Mapping[Channel, int],
        aggregators: Mapping[Channel, MessageCodec],
        threads: int,
        name: str,
    ) -> None:
        self._threads, self._size, place = threads, team.circle.size, team.circle.place
        owned = [[c for c in channels if owners[c] == owner] for owner in range(self._size)]
        self._shares = [len(part) for part in owned]
        self._all = Bundle([channel for part in owned for channel in part])
        bundles = [Bundle(part) for part in owned]
        self._mine: Optional[Bundle] = None
        if place >= 0:
            self._mine = bundles[place]
            self._aggregators = [aggregators[channel] for channel in owned[place]]
            room = self._size * self._mine.room
            self._to_owners = Alltoall(team.circle, room, f"to_owners.{name}")
        self._to_all = Spread(team, bundles, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Bring the messages to their owners."""
        if self._mine is not None:
            sent = [messages[channel] for channel in self._all.channels]
            self._came = self._to_owners(self._all.pack(sent, self._shares))

    def answer(self) -> None:
        """Bring the messages of the sums to everybody."""
        replies = None
        if self._mine is not None:
            rows = self._mine.unpack(self._came, self._size)
            sums = [
                aggregator.aggregate(messages, self._size, self._threads)
                for aggregator, messages in zip(self._aggregators, rows)
            ]
            replies = self._mine.pack(sums, [len(sums)])
        self._answers = self._to_all(replies)

    def receive(self) -> Messages:
        """The messages of the sums."""
        return dict(zip(self._all.channels, self._all.unpack(self._answers, 1)))


class Gathered:
    """Messages that go to everybody.

    Parameters
    ----------
    team : Team
        Who exchanges them.
    channels : sequence of Channel
    name : str
        The same on all workers, and of no other group.
    """

    def __init__(self, team: Team, channels: Sequence[Channel], name: str) -> None:
        self._team, self._bundle = team, Bundle(channels)
        self._to_all = Spread(team, [self._bundle] * team.circle.size, f"to_all.{name}")

    def send(self, messages: Messages) -> None:
        """Bring the messages to everybody."""
        packed = None
        if self._team.circle.place >= 0:
            sent = [messages[channel] for channel in self._bundle.channels]
            packed = self._bundle.pack(sent, [len(sent)])
        self._came = self._to_all(packed)

    def answer(self) -> None:
        """Everybody has all messages already."""

    def receive(self) -> Messages:
        """All members' messages, by their places."""
        rows = self._bundle.unpack(self._came, self._team.circle.size)
        return dict(zip(self._bundle.channels, rows))


Group = Union[TwoWay, Gathered]

"""The interfaces between the exchange and an engine that sends bytes between workers.

An engine, such as Gloo, is a `Transport`: it makes groups of workers, and sends bytes in them. A
front end gives the exchange its `Members`: the workers, in two such groups.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, Mapping, Protocol, Sequence

import numpy as np


class PeerError(RuntimeError):
    """Another worker has ended, or the time-out of a group is over."""


@contextmanager
def peer_errors() -> Iterator[None]:
    """Raise an engine's RuntimeError as a PeerError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerError(str(error)) from error


class Messages(Protocol):
    """One worker's messages to and from the other members of a group, repeated in every step.

    The calls of a step are `send`, then `wait`, then `expect` after the received bytes were read.
    For the first step, the constructor has called `expect` already. An empty array is neither sent
    nor awaited.
    """

    def expect(self) -> None:
        """Allow the next messages to overwrite the receive buffers. Returns at once."""

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        """Start to send bytes to members of the group. Returns at once.

        Parameters
        ----------
        data : mapping of int to array of uint8
            The bytes for each receiver, by its rank in the group. They must not change until `wait`
            returns.

        Raises
        ------
        PeerError
            A member has ended.
        """

    def wait(self) -> None:
        """Wait until all expected messages have arrived and all bytes were sent.

        Raises
        ------
        PeerError
            A member has ended, or the time-out of the group is over. The error names the member.
        """


class Transport(Protocol):
    """An engine that sends bytes.

    Attributes
    ----------
    tags : int
        The tags of messages must be smaller than this number.
    """

    tags: int

    def prepare(self) -> None:
        """Set the engine's environment variables, before any group is made."""

    def new_group(self, ranks: Sequence[int], timeout: timedelta | None, everybody: bool) -> Any:
        """Create a group of workers. For PyTorch it is a ProcessGroup.

        Parameters
        ----------
        ranks : sequence of int
            The members. All of them call this.
        timeout : timedelta, optional
            The longest time that a wait may last. None: the default of PyTorch's groups.
        everybody : bool
            Whether all workers of the job call this, not only the members.
        """

    def messages(self, group: Any, tag: int, rooms: Mapping[int, np.ndarray]) -> Messages:
        """Create the messages of a group.

        Parameters
        ----------
        group
            A group that this engine has made.
        tag : int
            The same on all members. No other messages of the group may have it.
        rooms : mapping of int to array of uint8
            The receive buffer for each member that sends to this one, by its rank in the group. A
            message may be shorter than its buffer.
        """


class Members(Protocol):
    """The workers of an exchange, and the connections between them.

    All of them make the same calls in the same order.

    Attributes
    ----------
    rank : int
        This worker's rank among the members.
    ranks : sequence of int
        The ranks of the members among all workers of the job, for error messages.
    """

    rank: int
    ranks: Sequence[int]

    def messages(self, phase: int, tag: int, rooms: Mapping[int, np.ndarray]) -> Messages:
        """See `Transport.messages`. Messages of phase 0 do not wait for those of phase 1."""

    def new_tag(self, identity: int) -> int:
        """Return an unused tag, which is the same on all members for the same identity."""

    def all_reduce(self, values: Any) -> Any:
        """Start to replace an array of the front end by its sum over the members.

        The method `wait` of the result returns at the end, or raises a RuntimeError.
        """

    def gather(self, mine: Any, doing: str) -> list[Any]:
        """Return the objects of all members, by rank.

        `doing` is their common action, for the warning about a member that does not come.
        """

    def close(self, keep: Any | None = None) -> None:
        """Release the connections. Peers may still send to the buffers in `keep`."""

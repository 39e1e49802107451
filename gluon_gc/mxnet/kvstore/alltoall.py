"""Collectives that nobody waits for: bytes between workers, queued on MXNet's engine."""

from __future__ import annotations

from typing import Optional

import mxnet as mx

from . import bundle
from .bundle import Packed
from .circle import Circle, Team


class Alltoall:
    """Brings each member of a circle what all of them have for it, step after step.

    Horovod begins once the bytes are there, in the order in which all members are ready, on a
    thread of its own. It refuses a name that is still at work, and what comes lies in the same
    arrays always: so MXNet's engine ends one exchange, and what reads it, before the next.

    Parameters
    ----------
    circle : Circle
        With this worker.
    room : int
        The most bytes that can come.
    name : str
        What is exchanged.
    """

    def __init__(self, circle: Circle, room: int, name: str) -> None:
        self._circle, self._name = circle, name
        data = mx.nd.empty(max(1, room), dtype="uint8")
        self._came = Packed(data, mx.nd.empty(circle.size, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """What comes from each member in turn, given what this one has for each; returns at once.

        It is good until the next call.
        """
        self._circle.exchange(packed, self._came, self._name)
        return self._came


class Spread:
    """Brings everybody what each member of a team's circle has, step after step.

    Parameters
    ----------
    team : Team
    room : int
        The most bytes that all members have.
    name : str
        What is exchanged.
    """

    def __init__(self, team: Team, room: int, name: str) -> None:
        self._team = team
        self._all: Optional[Alltoall] = None
        if team.circle.place >= 0:
            self._all = Alltoall(team.circle, room, name)
        if team.node is not None:
            self._handed_on = Alltoall(team.node, room, f"{name}.in_node")

    def __call__(self, packed: Optional[Packed]) -> Packed:
        """What each member has, in their order; None: this worker is none. Returns at once."""
        circle, node = self._team
        came = None
        if self._all is not None:
            came = self._all(bundle.repeated(packed, circle.size))
        if node is None:
            return came
        handed = bundle.nothing(node.size) if came is None else bundle.repeated(came, node.size)
        return self._handed_on(handed)

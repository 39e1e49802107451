"""Collectives that nobody waits for: bytes between workers, queued on MXNet's engine."""

from __future__ import annotations

from typing import Sequence, Union

import mxnet as mx

from . import bundle
from .bundle import Bundle, Packed
from .process_set import ProcessSet


class Alltoall:
    """Brings each member of a process set what all of them have for it, step after step.

    Horovod begins once the bytes are there, in the order in which all members are ready, on a
    thread of its own. It refuses a name that is still at work, and what comes lies in the same
    arrays always: so MXNet's engine ends one exchange, and what reads it, before the next.

    Parameters
    ----------
    process_set : ProcessSet
        With this worker.
    room : int
        The most bytes that can come.
    name : str
        What is exchanged.
    """

    def __init__(self, process_set: ProcessSet, room: int, name: str) -> None:
        self._process_set, self._name = process_set, name
        data = mx.nd.empty(max(1, room), dtype="uint8")
        self._came = Packed(data, mx.nd.empty(process_set.size, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """What comes from each member in turn, given what this one has for each; returns at once.

        It is good until the next call.
        """
        self._process_set.exchange(packed, self._came, self._name)
        return self._came


class Allgather:
    """Brings each member of a process set all that the members have, whose sizes are known before.

    In a ring: a link has one connection at a time, of which nobody has to wait for another. What
    `Alltoall` says of names and arrays holds here too.

    Parameters
    ----------
    process_set : ProcessSet
        With this worker.
    sizes : sequence of int
        Bytes of each member, at least one.
    name : str
        What is exchanged.
    """

    def __init__(self, process_set: ProcessSet, sizes: Sequence[int], name: str) -> None:
        self._process_set, self._name = process_set, name
        data = mx.nd.empty(sum(sizes), dtype="uint8")
        self._came = Packed(data, mx.nd.array(sizes, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """What each member has in turn, given what this one has; returns at once.

        It is good until the next call.
        """
        self._process_set.spread(packed.data, self._came.data, self._name)
        return self._came


class Spread:
    """Brings each member of a process set what every one has, step after step.

    Parameters
    ----------
    process_set : ProcessSet
        With this worker.
    bundles : sequence of Bundle
        What each member has.
    name : str
        What is exchanged.
    """

    def __init__(self, process_set: ProcessSet, bundles: Sequence[Bundle], name: str) -> None:
        rooms = [each.room for each in bundles]
        self._size = process_set.size
        self._known = all(rooms) and not any(each.varies for each in bundles)
        self._all: Union[Allgather, Alltoall]
        if self._known:
            self._all = Allgather(process_set, rooms, name)
        else:
            self._all = Alltoall(process_set, sum(rooms), name)

    def __call__(self, packed: Packed) -> Packed:
        """What each member has, in their order; returns at once."""
        return self._all(packed if self._known else bundle.repeated(packed, self._size))

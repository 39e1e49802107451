"""Asynchronous collectives of bytes: they are queued on MXNet's engine, and no caller waits."""

from __future__ import annotations

from typing import Sequence, Union

import mxnet as mx

from . import bundle
from .bundle import Bundle, Packed
from .process_set import ProcessSet


class Alltoall:
    """Sends different bytes to each member of a process set. It can be called in each step.

    Horovod runs the collective on its own thread, once all members are ready. It refuses a name
    that is still in use. All calls receive into the same arrays, so MXNet's engine finishes one
    exchange and its readers before it begins the next.
    """

    def __init__(self, process_set: ProcessSet, room: int, name: str) -> None:
        self._process_set, self._name = process_set, name
        data = mx.nd.empty(max(1, room), dtype="uint8")
        self._received = Packed(data, mx.nd.empty(process_set.size, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """Queue the exchange of the bytes for each member.

        Returns the bytes from each member, valid until the next call.
        """
        self._process_set.exchange(packed, self._received, self._name)
        return self._received


class Allgather:
    """Sends the bytes of each member of a process set to all members, with sizes known in advance.

    The members form a ring: each one sends to one neighbour only, so transfers do not compete for
    a link. Names and arrays are as in `Alltoall`.
    """

    def __init__(self, process_set: ProcessSet, sizes: Sequence[int], name: str) -> None:
        self._process_set, self._name = process_set, name
        data = mx.nd.empty(sum(sizes), dtype="uint8")
        self._received = Packed(data, mx.nd.array(sizes, dtype="int32"))

    def __call__(self, packed: Packed) -> Packed:
        """Queue the exchange of this member's bytes.

        Returns the bytes of each member, valid until the next call.
        """
        self._process_set.spread(packed.data, self._received.data, self._name)
        return self._received


class Spread:
    """Sends the bundle of each member of a process set to all members.

    It uses an allgather if the sizes are known in advance, and otherwise an alltoall.
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
        """Queue the exchange of this member's bundle. Returns all bundles in the members' order."""
        return self._all(packed if self._known else bundle.repeated(packed, self._size))

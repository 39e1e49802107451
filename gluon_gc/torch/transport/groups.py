"""The process groups of gluon_gc, and their time-outs.

A group that is no longer used is kept for the next user with the same workers. Destroying it would
be wrong: PyTorch may give a new group the same name, and then finds the old group's addresses.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, NamedTuple, Sequence, Tuple
from unittest import mock

import torch.distributed as dist
from torch.distributed import constants

from ... import env
from ...exchange.transport import Transport
from .gloo import Gloo

TRANSPORT: Transport = Gloo()
"""The engine that sends the bytes of all groups."""

Pair = Tuple[dist.ProcessGroup, dist.ProcessGroup]
"""Two groups of the same workers. Their collectives may run at the same time."""

Make = Callable[[Sequence[int], bool], dist.ProcessGroup]
"""Creates a group, as `new_group` does."""

_DEFAULT_TIMEOUTS = (constants.default_pg_timeout, constants.default_pg_nccl_timeout)


class Lease(NamedTuple):
    """Two groups, and their number among the groups that were made with the same key."""

    key: tuple[Make, tuple[int, ...]]
    number: int
    pair: Pair


_TAGS = 2**16  # the number of tags that an exchange may use

_asked: timedelta | None = None
_free: dict[tuple[Make, tuple[int, ...]], list[Lease]] = defaultdict(list)
_made: dict[tuple[Make, tuple[int, ...]], Iterator[int]] = defaultdict(itertools.count)
_leased: dict[int, Lease] = {}  # by the id of the pair
_returned: list[Lease] = []
_uses: dict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)
_kept: list[Any] = []
_alone: list[dist.ProcessGroup] = []


def ask_for(timeout: timedelta | None) -> None:
    """Set the time-out of groups that are made from now on; None: see `timeout`."""
    global _asked
    _asked = timeout


def timeout() -> timedelta | None:
    """Return the time-out of new groups; None: PyTorch's default.

    It is the one that `bps.init` was given, or else the longer one of GLUON_GC_TIMEOUT and the
    script's.
    """
    if _asked is not None:
        return _asked
    seconds = env.get("GLUON_GC_TIMEOUT")
    limits = [_of_script(), timedelta(seconds=seconds) if seconds else None]
    return max((limit for limit in limits if limit is not None), default=None)


def _of_script() -> timedelta | None:
    """Return the time-out that the script gave `init_process_group`; None if it gave none."""
    if not dist.is_initialized():
        return None
    group = dist.group.WORLD
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        limit = getattr(options, "_timeout", None)
        if limit is not None and limit not in _DEFAULT_TIMEOUTS:
            return limit
    return None


def require_init() -> None:
    """Raise a RuntimeError if there is no job whose workers could exchange anything."""
    if not dist.is_initialized():
        raise RuntimeError("gluon_gc has not been initialized; call bps.init() first")


def new_group(ranks: Sequence[int], everybody: bool = False) -> dist.ProcessGroup:
    """Create a group of these workers.

    `everybody`: all workers of the job call this, not only the members.
    """
    return TRANSPORT.new_group(ranks, timeout(), everybody)


@contextmanager
def _named(*words: Any) -> Iterator[None]:
    """Let PyTorch name a group that not all workers create after these words.

    Its own name has the number of groups that a worker is in. Workers with different numbers would
    wait for each other.
    """
    name = hashlib.sha256(repr(words).encode()).hexdigest()
    module, function = dist.distributed_c10d, "_hash_ranks_to_str"
    with mock.patch.object(module, function, lambda ranks: name, create=True):
        yield


def take(ranks: Sequence[int], everybody: bool = False, make: Make = new_group) -> Pair:
    """Return two groups of these workers, until `give_back`. All of these workers call this."""
    key = make, tuple(ranks)
    free = _free[key]
    if not free:
        number, pair = next(_made[key]), []
        for which in ("first", "second"):
            with _named("gluon_gc", make.__module__, tuple(ranks), number, which):
                pair.append(make(ranks, everybody))
        free.append(Lease(key, number, tuple(pair)))
    lease = free.pop()
    _leased[id(lease.pair)] = lease
    return lease.pair


def give_back(pair: Pair) -> None:
    """Make two groups available to a later `take` with the same workers, after a `settle`.

    The garbage collector may call this at other times on other workers.
    """
    lease = _leased.pop(id(pair), None)
    if lease is not None:  # else PyTorch has destroyed the groups
        _returned.append(lease)


def settle(group: dist.ProcessGroup | None) -> None:
    """Make those groups available that all their workers have given back.

    All workers of `group` call this. None: all workers.
    """
    own = list(_returned)
    described = [(lease.key[0].__module__, lease.key[1], lease.number) for lease in own]
    workers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(workers, described, group=group)
    by_rank = dict(zip(dist.get_process_group_ranks(group or dist.group.WORLD), map(set, workers)))
    common = [
        (key, lease)
        for key, lease in zip(described, own)
        if all(key in by_rank.get(rank, ()) for rank in key[1])
    ]
    for _, lease in sorted(common, key=lambda pair: pair[0]):
        _returned.remove(lease)
        _free[lease.key].append(lease)


def alone() -> dist.ProcessGroup:
    """Return a group of this worker only, with PyTorch's engine."""
    if not _alone:
        _alone.append(dist.new_group([dist.get_rank()], use_local_synchronization=True))
    return _alone[0]


def keep(buffers: Any) -> None:
    """Keep buffers that other workers may still send to.

    Gloo stops to read a connection when a message arrives whose buffer does not exist any more.
    """
    _kept.append(buffers)


class Tags:
    """Unused tags for messages between these workers. All of them create it."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._first = next(_uses[tuple(ranks)]) * _TAGS % TRANSPORT.tags
        self._taken: set[int] = set()

    def take(self, identity: int) -> int:
        """Return an unused tag.

        It follows from the identity, unless that tag is in use. So a message of other tensors finds
        no buffer, even if workers disagree: Gloo ends the process if a message is too long.
        """
        if len(self._taken) == _TAGS:
            raise RuntimeError(f"an exchange has made {_TAGS} transfers: make it again")
        offset = identity % _TAGS
        while offset in self._taken:
            offset = (offset + 1) % _TAGS
        self._taken.add(offset)
        return self._first + offset


def forget() -> None:
    """Forget all groups, because PyTorch destroys them."""
    for groups in (_free, _made, _leased, _returned, _alone):
        groups.clear()
    _uses.clear()
    _kept.clear()

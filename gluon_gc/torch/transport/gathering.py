"""Small collectives in which each worker learns the objects or numbers of all workers."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Sequence

import torch
import torch.distributed as dist

from ...exchange import agreement
from ...exchange.agreement import Facts
from ..watchdog import waiting
from . import groups

_GRACE = 2.0  # seconds in which the other workers that came get their errors

_calls: Counter[str] = Counter()  # by the name of the group

Gather = Callable[[Any, str], List[Any]]
"""Returns the objects of all workers, given this worker's object and the common action in words."""


def gather(mine: Any, doing: str, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the picklable objects of all workers of a group, by rank.

    `doing` is the common action of the workers, such as "call resume". A warning contains it if a
    worker does not come. The default group is that of all workers.
    """
    gathered: list[Any] = [None] * dist.get_world_size(group)
    with _naming_missing(doing, group):
        dist.all_gather_object(gathered, mine, group=group)
    return gathered


def gather_to_first(
    mine: Any, doing: str, group: dist.ProcessGroup | None = None
) -> list[Any] | None:
    """Like `gather`, but only the worker with rank 0 receives the objects. Others get None."""
    first = dist.get_global_rank(group or dist.group.WORLD, 0)
    size = dist.get_world_size(group)
    gathered: list[Any] | None = [None] * size if dist.get_rank() == first else None
    with _naming_missing(doing, group):
        dist.gather_object(mine, gathered, dst=first, group=group)
    return gathered


def gather_numbers(
    mine: Sequence[int], doing: str, group: dist.ProcessGroup | None = None
) -> list[tuple[int, ...]]:
    """Like `gather`, for int64 numbers. Each worker passes equally many."""
    gathered = torch.empty(dist.get_world_size(group), len(mine), dtype=torch.int64, device="cpu")
    with _naming_missing(doing, group):
        dist.all_gather(list(gathered), torch.tensor(mine, device="cpu"), group=group)
    return list(map(tuple, gathered.tolist()))


def agree(gather: Gather, facts: Facts, doing: str) -> None:
    """Raise a RuntimeError unless all workers state the same facts."""
    groups.require_init()
    agreement.agree(dist.get_rank(), facts, lambda message: gather(message, doing))


@contextmanager
def _naming_missing(doing: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Return a context for a collective, whose error names the workers that did not come."""
    group = group or dist.group.WORLD
    _calls[group.group_name] += 1
    waits = f"worker {dist.get_rank()} waits until all workers {doing}"
    with waiting(lambda: waits):
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(f"{waits}{_missing(group)}: {error}") from error


def _missing(group: dist.ProcessGroup) -> str:
    """Return which workers of a group have not reported an error of the same call in time."""
    call = f"gluon_gc: error in call {_calls[group.group_name]} of {group.group_name}, worker "
    ranks = dist.get_process_group_ranks(group)
    deadline = time.monotonic() + _GRACE
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{call}{dist.get_rank()}", "")
        while ranks and time.monotonic() < deadline:
            ranks = [rank for rank in ranks if not store.check([f"{call}{rank}"])]
            time.sleep(0.05)
    except RuntimeError:  # the store has ended with its worker
        return ""
    names = ", ".join(f"worker {rank}" for rank in ranks)
    return f", but {names} did not come" if names else ""

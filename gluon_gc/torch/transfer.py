"""Channels that travel together: one collective to their owners, another to all."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import numpy as np
import torch.distributed as dist

from .channel import GATHERED, Channel
from .coding import Places, codings
from .collectives import ToAll, ToOwners
from .job import Job
from .stats import Meter

Groups = Tuple[dist.ProcessGroup, dist.ProcessGroup]
"""For each of the two collectives, which may run at the same time."""


class Transfer:
    """Channels that travel together.

    Parameters
    ----------
    channels : sequence of Channel
    groups : pair of ProcessGroup
        For each of the two collectives.
    tag : int
        The same on all workers, and of no other transfer.

    Attributes
    ----------
    channels : list of Channel
    meter : Meter
        Of all of them.
    """

    def __init__(self, channels: Sequence[Channel], groups: Groups, tag: int) -> None:
        first, second = groups
        workers, rank = dist.get_world_size(first), dist.get_rank(first)
        gathered = [channel for channel in channels if channel.kind == GATHERED]
        owned = [
            [c for c in channels if c.kind != GATHERED and c.owner == worker]
            for worker in range(workers)
        ]
        others = [channel for of_owner in owned for channel in of_owner]
        parts = [[channel.part for channel in of_owner] for of_owner in owned]
        self.channels, self.meter = [*gathered, *others], Meter()
        self._to_all = ToAll(second, tag, [channel.part for channel in gathered], parts)
        sent = dict(zip(gathered, self._to_all.rooms))
        answer = dict(zip(owned[rank], self._to_all.rooms[len(gathered) :]))
        came: Dict[Channel, np.ndarray] = {}
        self._to_owners: Optional[ToOwners] = None
        if others:
            self._to_owners = ToOwners(first, tag, parts)
            sent.update(zip(others, self._to_owners.rooms))
            came.update(zip(owned[rank], self._to_owners.rows))
        answers = dict(zip(self.channels, self._to_all.rows))
        places = Places(sent, came, answer, answers)
        self._of_gathered = codings(gathered, places)
        self._of_others = codings(others, places)
        self._num_gathered = len(gathered)

    def begin(self, job: Job) -> None:
        """Nothing comes before `send`."""

    def send(self, job: Job) -> None:
        """Make what the owners get of the job's values, and send it."""
        if self._to_owners is not None:
            with self.meter.timing("compress_seconds"):
                for coding in self._of_others:
                    coding.encode(job)
            self.meter.pushed_bytes += self._to_owners.start()

    def answer(self, job: Job) -> None:
        """Make what all get, and send it."""
        with self.meter.timing("compress_seconds"):
            for coding in self._of_gathered:
                coding.encode(job)
        if self._to_owners is not None:
            with self.meter.timing("wait_seconds"):
                self._to_owners.wait()
            for coding in self._of_others:
                coding.answer()
            self._to_owners.expect()
        used = self._to_all.start()
        self.meter.pushed_bytes += sum(used[: self._num_gathered])  # the others are answers

    def deliver(self, job: Job) -> None:
        """Write the sums to the job's values."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        with self.meter.timing("decompress_seconds"):
            for coding in (*self._of_gathered, *self._of_others):
                job.nonfinite += coding.deliver(job)
        self._to_all.expect()
        self.meter.steps += 1

    def finish(self, job: Job) -> None:
        """Nothing is left to do."""

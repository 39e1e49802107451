"""Channels that travel together: one collective to their owners, another to all."""

from __future__ import annotations

from typing import Dict, Iterator, List, Sequence, Set, Tuple

import numpy as np
import torch.distributed as dist

from . import header
from .channel import GATHERED, Channel
from .coding import Places, codings
from .collectives import Part, ToAll, ToOwners
from .groups import Pair
from .header import SAME, Stamp
from .job import Job
from .stages import Stages
from .stats import Meter, shares_of


class Transfer(Stages[Job]):
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

    def __init__(self, channels: Sequence[Channel], groups: Pair, tag: int) -> None:
        first, second = groups
        workers, rank = dist.get_world_size(first), dist.get_rank(first)
        ranks = dist.get_process_group_ranks(first)
        gathered = [channel for channel in channels if channel.kind == GATHERED]
        owned = [
            [c for c in channels if c.kind != GATHERED and c.owner == worker]
            for worker in range(workers)
        ]
        others = [channel for of_owner in owned for channel in of_owner]
        self.channels, self.meter = [*gathered, *others], Meter()
        parts = [parts_of(of_owner) for of_owner in owned]
        parts_of_gathered = parts_of(gathered)
        self._num_gathered = len(parts_of_gathered)
        self._to_all = ToAll(second, tag, parts_of_gathered, parts)
        self._to_owners = ToOwners(first, tag, parts) if others else None
        rooms, rows = iter(self._to_all.rooms), iter(self._to_all.rows)
        sent, answer, came, answers = {}, {}, {}, {}
        self._gathered = Section(gathered, rooms, sent)
        self._answer = Section(owned[rank], rooms, answer)
        self._gathered_rows = Section(gathered, rows, answers, ranks)
        self._answers = [Section(of_owner, rows, answers) for of_owner in owned]
        if self._to_owners is not None:
            rooms = iter(self._to_owners.rooms)
            self._sent = [Section(of_owner, rooms, sent) for of_owner in owned]
            self._came = Section(owned[rank], iter(self._to_owners.rows), came, ranks)
        places = Places(sent, came, answer, answers)
        self._of_gathered = codings(gathered, places)
        self._of_others = codings(others, places)

    def shares(self) -> Iterator[Tuple[str, float]]:
        return shares_of(self.channels)

    def send(self, job: Job) -> None:
        """Make what the owners get of the job's values, and send it."""
        if self._to_owners is None:
            return
        with self.meter.timing("compress_seconds"):
            for section in self._sent:
                section.write(job)
                keep_state(job, section.channels)
            for coding in self._of_others:
                coding.encode(job)
        self.meter.pushed_bytes += self._to_owners.start()

    def answer(self, job: Job) -> None:
        """Make what all get, and send it."""
        with self.meter.timing("compress_seconds"):
            self._gathered.write(job)
            keep_state(job, self._gathered.channels)
            for coding in self._of_gathered:
                coding.encode(job)
        if self._to_owners is not None:
            with self.meter.timing("wait_seconds"):
                self._to_owners.wait()
            self._aggregate(job)
            self._to_owners.expect()
        used = self._to_all.start()
        self.meter.pushed_bytes += sum(used[: self._num_gathered])  # the others are answers

    def _aggregate(self, job: Job) -> None:
        """Make the answers; aggregators stay as they are where nobody has a gradient."""
        outcome, unused = self._came.read()
        owned = self._came.channels
        aggregators = [c.aggregator for c in owned if c.aggregator and (job.keeps or c in unused)]
        for aggregator in aggregators:
            aggregator.keep()
        for coding in self._of_others:
            coding.answer()
        for channel in unused:
            if channel.aggregator is not None:
                channel.aggregator.take_back()
        self._answer.write_answer(outcome, unused)

    def deliver(self, job: Job) -> None:
        """Write the sums to the job's values."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        read = [self._gathered_rows.read(), *(section.read_answer() for section in self._answers)]
        with self.meter.timing("decompress_seconds"):
            for coding in (*self._of_gathered, *self._of_others):
                job.nonfinite += coding.deliver(job)
            for outcome, unused in read:
                heed(job, outcome)
                leave_out(job, unused)
        self._to_all.expect()
        self.meter.steps += 1


def parts_of(channels: Sequence[Channel]) -> List[Part]:
    """What travels of channels in one message: a header, and each of them; nothing for none."""
    return [header.part(len(channels)), *(c.part for c in channels)] if channels else []


class Section:
    """Channels behind one header.

    Parameters
    ----------
    channels : sequence of Channel
    rooms : iterator of array
        Where the header is, and then each channel; this takes as many of them.
    places : dict
        Is told where each channel is.
    ranks : sequence of int
        The workers whose headers `read` compares.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        rooms: Iterator[np.ndarray],
        places: Dict[Channel, np.ndarray],
        ranks: Sequence[int] = (),
    ) -> None:
        self.channels, self._ranks = channels, ranks
        if channels:
            self._header = next(rooms)
            places.update(zip(channels, rooms))

    def write(self, job: Job) -> None:
        """Say which channels have a gradient here."""
        if self.channels:
            present = [channel.piece.tensor not in job.absent for channel in self.channels]
            header.write(self._header, job.stamp, present)

    def read(self) -> Tuple[Stamp, Set[Channel]]:
        """The outcome of comparing all workers' headers, and the channels that nobody uses."""
        if not self.channels:
            return SAME, set()
        return self._unused(*header.read(self._header, self._ranks))

    def write_answer(self, outcome: Stamp, unused: Set[Channel]) -> None:
        """Answer with what `read` found."""
        if self.channels:
            header.write(self._header, outcome, [c not in unused for c in self.channels])

    def read_answer(self) -> Tuple[Stamp, Set[Channel]]:
        """What an owner answered."""
        if not self.channels:
            return SAME, set()
        return self._unused(*header.read_answer(self._header[0]))

    def _unused(self, outcome: Stamp, present: np.ndarray) -> Tuple[Stamp, Set[Channel]]:
        if present.all():
            return outcome, set()
        return outcome, {channel for channel, here in zip(self.channels, present) if not here}


def keep_state(job: Job, channels: Sequence[Channel]) -> None:
    """Have coders keep copies of what may have to be taken back."""
    if job.keeps or job.absent:
        for channel in channels:
            if channel.coder is not None and (job.keeps or channel.piece.tensor in job.absent):
                channel.coder.keep()


def heed(job: Job, outcome: Stamp) -> None:
    """Note that workers differ, if they do."""
    if outcome != SAME:
        job.outcome = outcome


def leave_out(job: Job, unused: Set[Channel]) -> None:
    """Have things as they were before, for channels that no worker has a gradient of."""
    with job.staged.queue():
        for channel in unused:
            job.of(channel.piece).zero_()
    for channel in unused:
        job.unused.add(channel.piece.tensor)
        if channel.coder is not None:
            channel.coder.take_back()

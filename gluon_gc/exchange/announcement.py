"""Announcement: lets the workers compare their requests while the tensors travel already."""

from __future__ import annotations

from typing import Callable, Iterable, Tuple

import numpy as np

from . import header
from .agreement import Facts
from .header import OutOfStepError, Stamp
from .job import Task
from .meter import Meter
from .transfer import Link, Stages


class Announcement(Stages):
    """The first transfer of a job with `Request.announced`: a checksum from each worker to all.

    Workers that request different tensors would wait for each other for ever. With an announcement,
    all of them notice it. `agree` then raises an error that names the difference.
    """

    def __init__(self, link: Link, agree: Callable[[Facts, str], None]) -> None:
        self._agree, self._ranks, self.meter = agree, link.members.ranks, Meter()
        sizes = [header.wire_size(0)]
        self._to_all = link.collectives.to_all(
            link.members, link.tag, sizes, [[] for _ in self._ranks]
        )

    def shares(self) -> Iterable[Tuple[str, float]]:
        return ()

    def send(self, task: Task) -> None:
        announced = task.job.request.announced
        header.write(self._to_all.rooms[0], Stamp(tensors=announced.checksum), ())
        self._to_all.start()

    def answer(self, task: Task) -> None:
        """Compare the checksums of all workers."""
        self._to_all.wait()
        (rows,) = self._to_all.rows
        outcome, _, _ = header.read(np.array(rows), self._ranks)
        self._to_all.expect()
        if outcome != header.SAME:
            announced = task.job.request.announced
            try:
                self._agree(announced.facts, announced.doing)
            except RuntimeError as error:
                raise OutOfStepError(str(error)) from error
            raise OutOfStepError(header.problem(outcome), outcome)

    def abandon(self, outcome: Stamp) -> None:
        self._to_all.send_instead(header.broken(outcome))

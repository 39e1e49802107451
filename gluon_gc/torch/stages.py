"""Stages: the five steps of a transfer, each on its own thread."""

from __future__ import annotations

from typing import Callable, Iterable, NamedTuple, Protocol, Sequence, Tuple, TypeVar

from .header import Stamp
from .job import Job
from .stats import Meter

AnyJob = TypeVar("AnyJob", bound=Job, contravariant=True)


class Stages(Protocol[AnyJob]):
    """Tensors, or parts of tensors, that travel together in every step.

    The stages of a job are called in the order below. An earlier stage may already handle the next
    job. All workers call each stage for the same jobs in the same order. Subclasses omit stages
    that have nothing to do.

    Attributes
    ----------
    meter : Meter
        Bytes and seconds of this worker.
    """

    meter: Meter

    def shares(self) -> Iterable[Tuple[str, float]]:
        """Return, for each part, its tensor's name and its share of the meter's numbers."""
        raise NotImplementedError

    def begin(self, job: AnyJob) -> None:
        """Send the job's values to the workers of the same machine.

        This stage and `finish` exist only if machines sum their workers' values first.
        """

    def send(self, job: AnyJob) -> None:
        """Send the job's values or payloads to the owners."""

    def answer(self, job: AnyJob) -> None:
        """As an owner, sum the received data, and send the sum to all workers."""

    def deliver(self, job: AnyJob) -> None:
        """Wait for the sums, and write them to the job's values."""

    def finish(self, job: AnyJob) -> None:
        """Write sums that other workers of the machine received to the job's values."""

    def abandon(self, outcome: Stamp) -> None:
        """Send this outcome to all workers that may wait for a message of this transfer.

        No stage is called afterwards, but one may be running on another thread.
        """


class Item(NamedTuple):
    """A job of one transfer."""

    transfer: Stages
    job: Job


STAGES: Sequence[Callable[[Item], None]] = (
    lambda item: item.transfer.begin(item.job),
    lambda item: item.transfer.send(item.job),
    lambda item: item.transfer.answer(item.job),
    lambda item: item.transfer.deliver(item.job),
    lambda item: item.transfer.finish(item.job),
)
"""The stages in their order, for a `Pipeline`."""

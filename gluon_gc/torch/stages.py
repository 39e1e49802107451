"""What an exchange does with anything that travels: five stages, each on a thread of its own."""

from __future__ import annotations

from typing import Callable, Iterable, NamedTuple, Protocol, Sequence, Tuple, TypeVar

from .job import Job
from .stats import Meter

AnyJob = TypeVar("AnyJob", bound=Job, contravariant=True)


class Stages(Protocol[AnyJob]):
    """Tensors, or parts of some, that travel together, step after step.

    The stages of a job are called in the order below. While one stage has a job, an earlier stage
    may have the next job already. A worker calls each stage for the same jobs in the same order as
    all others do. Classes that inherit from this one leave out the stages with nothing to do.

    Attributes
    ----------
    meter : Meter
        Bytes and seconds of this worker.
    """

    meter: Meter

    def shares(self) -> Iterable[Tuple[str, float]]:
        """For each part the name of its tensor, and its share of the meter's numbers."""
        raise NotImplementedError

    def begin(self, job: AnyJob) -> None:
        """Hand the job's values over to the workers of the same machine.

        This stage and `finish` are called only if machines add up what their workers have.
        """

    def send(self, job: AnyJob) -> None:
        """Send what the owners of the parts get of the job's values."""

    def answer(self, job: AnyJob) -> None:
        """As an owner, sum up what was sent, and send the sum to all workers."""

    def deliver(self, job: AnyJob) -> None:
        """Wait for the sums, and write them to the job's values."""

    def finish(self, job: AnyJob) -> None:
        """Write the sums to the job's values if another worker of the machine received them."""


class Item(NamedTuple):
    """A job of one transfer, on its way through the stages."""

    transfer: Stages
    job: Job


STAGES: Sequence[Callable[[Item], None]] = (
    lambda item: item.transfer.begin(item.job),
    lambda item: item.transfer.send(item.job),
    lambda item: item.transfer.answer(item.job),
    lambda item: item.transfer.deliver(item.job),
    lambda item: item.transfer.finish(item.job),
)
"""In their order, for a `Pipeline`."""

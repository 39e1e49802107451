"""Request, Job and Result: tensors that are being exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Iterable, Mapping, NamedTuple, Optional, Sequence

from .. import kernels
from . import header
from .agreement import Facts
from .arrays import Values
from .coder import Coder
from .header import SAME, Stamp


class Announced(NamedTuple):
    """What the workers of a request compare first."""

    checksum: int
    facts: Callable[[], Facts]  # that explain a difference; equal where checksums are equal
    doing: str  # the common action of the workers


@dataclass(frozen=True)
class Request:
    """Tensors whose values are to be replaced by their averages or sums over workers."""

    values: Values
    average: bool = True
    divisor: float = 1.0  # this worker's values are divided by it first
    ratios: Mapping[str, float] = field(default_factory=dict)  # previous learning rate / current
    absent: Collection[str] = ()
    """The tensors without a gradient here. Their values are zeros. If no worker has a gradient, the
    exchange is taken back, so `continues` must be given."""
    stamp: Callable[[], Stamp] = lambda: SAME
    """Returns the stamp when it is sent. It must be the same on all workers."""
    continues: Collection[str] | None = None
    """The tensors whose last exchange this one continues, see `Coder.turn`. None: this exchange
    cannot be taken back."""
    announced: Announced | None = None
    output: Values | None = None  # where the sums are written; None: they replace the values

    @property
    def names(self) -> Collection[str]:
        """The tensors."""
        return self.values.names

    @property
    def sums(self) -> Values:
        """Where the sums are written."""
        return self.values if self.output is None else self.output


class Result(NamedTuple):
    """What an exchange found in the tensors of a request."""

    nonfinite: Sequence[str]  # the tensors whose sum has a NaN or an infinity, in sorted order
    unused: Collection[str]  # the tensors without a gradient on any worker; nothing has changed


Done = Callable[[Optional[Result], Optional[BaseException]], None]
"""Called on another thread at the end of an exchange, with the result or with an error."""


@dataclass(frozen=True)
class Job:
    """A request on its way. The exchange has started `number` jobs before."""

    request: Request
    number: int
    scale: float  # of this worker's values
    contributors: int = 1  # the number of workers whose sum they are

    def states_for(
        self, coders: Iterable[Coder], tensors: Iterable[str]
    ) -> list[kernels.StateOfCall]:
        """Return where coders read and write their states when they compress parts of tensors."""
        continues = self.request.continues
        if continues is None:
            return [coder.in_place() for coder in coders]
        return [coder.turn(tensor in continues) for coder, tensor in zip(coders, tensors)]

    def stamp_of(self, identity: int) -> Stamp:
        """Return the stamp for a transfer with this `header.identity`."""
        tensors = header.checksum_of_job(self.number, identity)
        return self.request.stamp()._replace(tensors=tensors)


@dataclass
class Task:
    """The part of a job that one transfer carries.

    It passes from stage to stage. Only the thread of its stage uses it.
    """

    transfer: Any
    job: Job
    outcome: Stamp = SAME  # of the comparison of all workers' stamps
    nonfinite: list[Iterable[str]] = field(default_factory=list)  # read at the job's end
    unused: set[str] = field(default_factory=set)
    contributors: int = 0  # the number of workers whose values are in the sums
    under_way: Any = None  # what a stage leaves for the next one
    error: Exception | None = None  # of this worker before the answer, which raises it

    def note(self, outcome: Stamp) -> None:
        """Keep an outcome that shows a difference. OutOfStepError if no exchange can follow."""
        header.require_in_step(outcome)
        if outcome != SAME:
            self.outcome = outcome

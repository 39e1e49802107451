"""Reporter: makes a report every few steps, from what a front end measures."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from ..exchange.agreement import Facts
from ..log import logger
from ..options import is_whole
from . import sinks
from .report import Norms, Report, largest_ratios, ratio_of, waited_for

_SECONDS = ("compress_seconds", "wait_seconds", "decompress_seconds")
_BYTES = ("pushed_bytes", "pulled_bytes")


@dataclass(frozen=True)
class Settings:
    """The arguments of `bps.report`.

    Parameters
    ----------
    every : int
        The steps from one report to the next.
    tensorboard : str, optional
        A folder. Each worker writes event files to its subfolder workerRANK.
    wandb : bool
        Whether to log to the run of `wandb.init`: that of worker 0, and those of other workers that
        have one.
    prometheus : int, optional
        A port. The worker with local rank r serves its last report as gauges at port + r, on all
        addresses of the machine.
    measure_error : int, optional
        Steps, a multiple of `every`. At these distances, a report also has the error of the
        average, for which the workers send the gradients uncompressed, too.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    """

    every: int = 100
    tensorboard: str | None = None
    wandb: bool = False
    prometheus: int | None = None
    measure_error: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "prometheus", "measure_error"):
            value = getattr(self, name)
            if value is None and name != "every":
                continue
            if not is_whole(value):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be > 0, got {value!r}")
        if self.measure_error is not None and self.measure_error % self.every:
            raise ValueError(
                f"measure_error must be a multiple of every ({self.every}), got "
                f"{self.measure_error}: the error is part of a report"
            )


class Measured(NamedTuple):
    """What a front end has measured since the last report."""

    step: int  # the number of the last step
    total: Mapping[str, Any]  # "total" of `compression_stats`, of these steps only
    exchange_seconds: float  # the average time of a step in which an exchange is under way
    # By tensor, of a part's residual and gradient in the last step or, with an algorithm, in the
    # first rounds.
    residuals: Sequence[tuple[str, Norms]]
    errors: Sequence[Norms]  # of the errors of averages, and of the exact averages


class Reporter(ABC):
    """Makes the reports of one worker. A front end measures, and tells when a step begins and ends.

    All workers begin and end the same steps, because a report gathers their waits. If
    `make_settings` raises the error of a wrong argument in one of them, all raise one.
    """

    def __init__(
        self,
        make_settings: Callable[[], Settings],
        worker: int,
        local_worker: int,
        agree: Callable[[Facts], None],  # RuntimeError unless all state the same facts
        writers: list[str],  # the modules that may have a SummaryWriter
    ) -> None:
        self.last: Report | None = None
        self.worker, self.steps, self._reported = worker, 0, 0
        self.is_open = True  # whether reports may follow
        self._sinks: list[sinks.Sink] = []
        try:
            self.settings = settings = make_settings()
            self._sinks += sinks.opened(settings, worker, local_worker, writers)
        except BaseException:
            with suppress(RuntimeError):  # the error here says more
                agree([("report", {"arguments": "that it refuses"})])
            raise
        self._release = weakref.finalize(self, _close, self._sinks)
        try:
            shared = {"every": settings.every, "measure_error": settings.measure_error}
            agree([("report", {"arguments": "that fit", **shared})])
        except BaseException:
            self.close()
            raise
        self._since = time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the report follows at the end of the step that has begun."""
        ends = self.steps > self._reported and not self.steps % self.settings.every
        return ends and self.is_open

    @property
    def measures_error(self) -> bool:
        """Whether the next report has the error of an average."""
        if self.settings.measure_error is None or not self.is_open:
            return False
        every = self.settings.every
        return not -(-self.steps // every) * every % self.settings.measure_error

    def begin(self) -> None:
        """Count a step that begins. All workers call this."""
        self.end()  # if no optimizer has made a step since the last call
        self.steps += 1

    def end(self) -> None:
        """Make the report if it is due. All workers call this."""
        if not self.is_due:
            return
        steps = self.steps - self._reported
        measured = self._measured(steps)  # MXNet waits here for the steps
        seconds = (time.perf_counter() - self._since) / steps
        total = measured.total
        waits = self._gathered(total["wait_seconds"] / seconds)
        self.last = Report(
            measured.step,
            self.worker,
            seconds,
            max(0.0, seconds - measured.exchange_seconds),
            measured.exchange_seconds,
            *(total[name] for name in (*_SECONDS, *_BYTES)),
            total["ratio"],
            ratio_of(norms for _, norms in measured.residuals),
            largest_ratios(measured.residuals),
            waited_for(waits),
            ratio_of(measured.errors),
        )
        for sink in list(self._sinks):
            try:
                sink.write(self.last)
            except Exception as error:  # training goes on without it
                self._sinks.remove(sink)
                name = type(sink).__name__
                logger.warning("no further reports are written to %s: %s", name, error)
        self._reported, self._since = self.steps, time.perf_counter()

    def close(self) -> None:
        """Close files and ports, between the same steps on all workers. No report follows."""
        self.is_open = False
        self._release()

    @abstractmethod
    def _measured(self, steps: int) -> Measured:
        """Return what was measured in the last `steps` steps."""

    @abstractmethod
    def _gathered(self, share: float) -> list[float]:
        """Return the numbers of all workers, by rank; empty if the workers do not wait."""


def _close(opened: list[sinks.Sink]) -> None:
    while opened:
        opened.pop().close()


def replace_reporter(owner: Any, make: Callable[[], Reporter]) -> Reporter:
    """Replace the attribute `reporter` of an object that tells it when a step begins."""
    if owner.reporter is not None:
        owner.reporter.close()  # it may hold the port of the new one
    owner.reporter = make()
    return owner.reporter

"""report: what the exchanges of a CompressionState or of an algorithm do, every few steps."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from functools import partial
from typing import (
    Any,
    Callable,
    Iterable,
    Mapping,
)

import torch
from torch.futures import Future
from torch.optim import Optimizer

from ..exchange import statistics
from ..exchange.agreement import Facts
from ..exchange.chunk import ExchangedChunk
from ..exchange.exchange import Exchange, Lane, exact_of
from ..exchange.job import Announced, Request
from ..reporting import Measured, Norms, Reporter, Settings, replace_reporter
from .algorithms.state import AlgorithmState
from .byteps.runtime import local_rank
from .gradients.optimizer_hooks import StepObserver, steps_any, unwrapped
from .gradients.state import CompressionState
from .optimizer.copies import Distributed
from .state.sharded import ModelCompression
from .transport import staging

_DOING = "make a report"
_WRITERS = ["tensorboardX", "torch.utils.tensorboard"]


def report(
    target: Optimizer | CompressionState,
    every: int = 100,
    tensorboard: str | None = None,
    wandb: bool = False,
    prometheus: int | None = None,
    measure_error: int | None = None,
) -> Reporter:
    """Report bytes, seconds and residuals every few steps. All workers call this.

    Each worker writes a line to the logger gluon_gc.report. `gluon_gc.reporting.Report` explains
    the numbers. Results of training do not change. The report ends with the target's `close`, and a
    second call for the same target replaces it.

    Parameters
    ----------
    target : Optimizer or CompressionState
        A DistributedOptimizer, or the state of a DDP hook.
    every, tensorboard, wandb, prometheus, measure_error
        See `gluon_gc.reporting.Settings`.

    Returns
    -------
    Reporter
        Its attribute `last` is the last `Report`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or the target compresses collectives of fully_shard.
    ImportError
        The package for tensorboard, wandb or prometheus is not installed.
    RuntimeError
        Another worker has raised an error, or has other arguments.
    """
    state = _state_of(target)
    make_settings = partial(Settings, every, tensorboard, wandb, prometheus, measure_error)
    if isinstance(state, AlgorithmState):
        return replace_reporter(state, lambda: AlgorithmReporter(state, make_settings))
    return replace_reporter(state.gradients, lambda: GradientReporter(state, make_settings))


def _state_of(target: Any) -> CompressionState | AlgorithmState:
    if isinstance(target, ModelCompression):
        raise ValueError(
            f"report does not work with the {type(target).__name__} of fully_shard: read its "
            "compression_stats()"
        )
    if not isinstance(target, (CompressionState, AlgorithmState)):
        optimizer = unwrapped(target)
        if not isinstance(optimizer, Distributed):
            raise TypeError(
                "report needs a DistributedOptimizer or a CompressionState, got "
                f"{type(optimizer).__name__}"
            )
        target = optimizer.compression_state
    target.require_usable()
    return target


class ExchangeReporter(Reporter):
    """Measures the exchanges of a front end's object."""

    def __init__(self, make_settings: Callable[[], Settings]) -> None:
        self._window = statistics.Window()
        self._busy: weakref.WeakKeyDictionary[Exchange, float] = weakref.WeakKeyDictionary()
        self._exact: weakref.WeakKeyDictionary[Lane, Lane] = weakref.WeakKeyDictionary()
        self._norms: dict[ExchangedChunk, Norms] = {}
        self._errors: dict[tuple[Lane, str], Norms] = {}
        super().__init__(make_settings, self._exchange.rank, local_rank(), self._agree, _WRITERS)
        self._measured(1)  # the first report begins here

    @property
    @abstractmethod
    def _exchange(self) -> Exchange:
        """The exchange, which may be replaced."""

    @abstractmethod
    def _statistics(self, steps: int) -> dict[str, Any]:
        """Return the statistics of the last steps; see `compression_stats`."""

    def _agree(self, facts: Facts) -> None:
        self._exchange.agree(facts, _DOING)

    def _gathered(self, share: float) -> list[float]:
        return self._exchange.gather_objects(share, _DOING)

    def _measured(self, steps: int) -> Measured:
        exchange = self._exchange
        residuals = [(chunk.piece.tensor, norms) for chunk, norms in self._norms.items()]
        errors = list(self._errors.values())
        self._norms.clear()
        self._errors.clear()
        busy = exchange.busy.seconds
        seconds, self._busy[exchange] = busy - self._busy.get(exchange, 0.0), busy
        total = self._statistics(steps)["total"]
        return Measured(self._step, total, seconds / steps, residuals, errors)

    def unprepared(self, lanes: Iterable[Lane]) -> list[Lane]:
        """Return the lanes to `prepare` if the next report has the error of their averages."""
        return [
            lane
            for lane in lanes
            if self.measures_error and lane not in self._exact
            if any(c.plan.params is not None or c.wire != c.working for c in lane.chunks)
        ]

    def prepare(self, lanes: Iterable[Lane]) -> None:
        """Prepare to exchange tensors uncompressed, too.

        All workers call this, with no exchange under way.
        """
        for lane in lanes:
            self._exact[lane] = lane.uncompressed()

    def measure(
        self,
        lane: Lane,
        tensors: Mapping[str, torch.Tensor],
        divisor: float = 1.0,
        announced: Announced | None = None,
    ) -> Callable[[], None] | None:
        """Measure tensors that will be averaged, divided by `divisor`, in place.

        All workers call this, and may announce the average; see `Request`. The result must be
        called when the tensors are the averages. None: nothing is measured now.
        """
        norms = {
            chunk: _norm(staging.flat(tensors[chunk.piece.tensor])[_range(chunk)])
            for chunk in lane.chunks
            if chunk.piece.tensor in tensors
            and chunk.coder is not None
            and chunk.coder.codec.memory
        }
        exact: dict[str, torch.Tensor] = {}
        averaged: Future[None] = Future()
        if self.measures_error and lane in self._exact:
            exact = {name: tensor.clone() for name, tensor in tensors.items()}
            staged = staging.Staged({exact_of(name): copy for name, copy in exact.items()})
            done = staging.resolving(averaged, lambda result: staged.finish(divisor))
            request = Request(staged, divisor=divisor, announced=announced)
            self._exact[lane].start(request, done)

        def finish() -> None:
            for chunk, norm in norms.items():
                residual = chunk.coder.residual_norm() * lane.exchange.senders(chunk)
                self._norms[chunk] = residual, float(norm) / divisor
            if exact:
                averaged.wait()
            for name, copy in exact.items():
                average = staging.flat(copy).double()
                difference = staging.flat(tensors[name]) - average
                self._errors[lane, name] = float(_norm(difference)), float(_norm(average))

        return finish


def _range(chunk: ExchangedChunk) -> slice:
    return slice(chunk.piece.begin, chunk.piece.end)


def _norm(values: torch.Tensor) -> torch.Tensor:
    """Return the l2 norm of real values, computed in float64."""
    return torch.linalg.vector_norm(values, dtype=torch.float64)


class GradientReporter(ExchangeReporter, StepObserver):
    """Reports on a CompressionState, whose steps end with a step of any optimizer."""

    def __init__(self, state: CompressionState, make_settings: Callable[[], Settings]) -> None:
        self._gradients, self._parameters = state.gradients, state.parameters
        self._observed = set(map(id, state.parameters.values()))
        ExchangeReporter.__init__(self, make_settings)
        StepObserver.__init__(self)

    @property
    def _exchange(self) -> Exchange:
        return self._gradients.compression.exchange

    @property
    def _step(self) -> int:
        return self._gradients.count

    def _statistics(self, steps: int) -> dict[str, Any]:
        sizes = staging.sizes_of(self._parameters)
        return statistics.of_step(self._exchange.transfers, sizes, True, window=self._window)

    def begin(self) -> None:
        super().begin()
        self.prepare(self.unprepared([self._gradients.compression.lane]))

    def measure(
        self, lane: Lane, tensors: Mapping[str, torch.Tensor], *details: Any
    ) -> Callable[[], None] | None:
        return super().measure(lane, tensors, *details) if self.is_due else None

    def after_step(self, optimizer: Optimizer) -> None:
        """End the step unless updates are late: `begin` then ends it, when all have been made."""
        late = self._gradients.updates_late
        if self.is_due and not late and steps_any(optimizer, self._observed):
            self.end()


class AlgorithmReporter(ExchangeReporter):
    """Reports on an algorithm. A vector is measured in its first round after a report.

    With a mailbox, the workers are those of the site, and no round is measured.
    """

    def __init__(self, state: AlgorithmState, make_settings: Callable[[], Settings]) -> None:
        self._state = state
        self._seen: set[tuple[Lane, str]] = set()  # the vectors that were measured
        super().__init__(make_settings)

    @property
    def _exchange(self) -> Exchange:
        return self._state.rounds.exchange

    @property
    def _step(self) -> int:
        return self._state.steps

    def _statistics(self, steps: int) -> dict[str, Any]:
        sizes, transfers = staging.sizes_of(self._state.parameters), self._state.of_rounds.transfers
        return statistics.of_step(transfers, sizes, True, steps, window=self._window)

    def begin(self) -> None:
        super().begin()
        lanes = self.unprepared(self._state.rounds.lanes.values())
        if lanes:
            self._state.driver.finish()
            self.prepare(lanes)

    def measure(
        self, lane: Lane, tensors: Mapping[str, torch.Tensor], *details: Any
    ) -> Callable[[], None] | None:
        vectors = {(lane, name) for name in tensors}
        if vectors <= self._seen or not self.is_open:
            return None
        self._seen |= vectors
        return super().measure(lane, tensors, *details)

    def end(self) -> None:
        if self.is_due:
            self._state.driver.finish()
            super().end()
            self._seen.clear()

"""The base class of the ways to average: gradients in every step, or an algorithm's vectors."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Collection,
    Mapping,
    Sequence,
)

import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from ...compression.learning_rates import LearningRates
from ...exchange.agreement import Facts
from ...exchange.plan import Tensor
from ...exchange.statistics import STATS, Window
from ...mailbox import Run
from ...state import Arrays, Key
from ..exchange.exchange import Exchange
from ..exchange.gradient import Job
from . import optimizer_facts, reports
from .amp import AgreedLossScaler
from .equal_weights import WeightCheck
from .parameters import Compressions

if TYPE_CHECKING:
    from .reporter import TrainerReporter

Update = Callable[..., None]
"""Applies the optimizer, given a factor for the gradients, `ignore_stale_grad`, and another factor
for float16 gradients (default: 1)."""


@dataclass(frozen=True)
class StepArguments:
    """The arguments of a step, with gradients times `scale` / `batch_size`."""

    optimizer: Optimizer
    batch_size: float | None  # None: the gradients are not divided yet
    scale: float
    ignore_stale_grad: bool
    scaler: AgreedLossScaler | None  # AMP's. If it finds an overflow, the step is left out


class Averaging(ABC):
    """Averages gradients or other vectors of a trainer; all workers call each method together."""

    noun: ClassVar[str]  # the log's word for the averaged vectors: "gradient" or "vector"
    described: dict[str, Any] | None = None  # the algorithm's name and options, if there is one
    run: Run | None = None  # that the process is a worker of, if it has a mailbox
    mu: float | None = None  # the momentum that is applied outside the optimizer

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        params: Sequence[Parameter],
        last_first: Sequence[int],
        compressions: Compressions,
        on_nonfinite: str,
        when_prepared: Callable[[], None],
    ) -> None:
        self._name = name  # the prefix of the tensors' names in the exchange
        self._params, self._last_first = params, last_first
        self._compressions, self._on_nonfinite = compressions, on_nonfinite
        self.steps = 0
        # The declared tensors, by parameter index and kind of vector. The kind of a gradient is "".
        self.tensors: dict[tuple[int, str], Tensor] = {}
        self.learning_rates = LearningRates()  # by parameter index, without lr_mult
        self._when_prepared = when_prepared  # called after new tensors are declared
        self._epoch: int | None = None
        self.reporter: TrainerReporter | None = None  # of `bps.report`
        self._use(exchange)

    # A subclass implements these

    @abstractmethod
    def follow(self, exchange: Exchange, goes_on: bool) -> bool:
        """Use another exchange. Returns whether the initial parameters must be broadcast again.

        `goes_on`: the workers are the same as before, with the same ranks.
        """

    @abstractmethod
    def prepare(self, optimizer: Optimizer, call: str, about: Facts = ()) -> None:
        """Declare all vectors that are not declared yet, for the user's function `call`."""

    @abstractmethod
    def step(self, arguments: StepArguments, update: Update) -> None:
        """Make a step, in which `update` applies the optimizer."""

    @abstractmethod
    def total_overflow(self, overflow: NDArray, about: Facts) -> NDArray:
        """The sum of AMP's overflow counts over the workers that skip steps together."""

    @abstractmethod
    def require(self, call: str) -> None:
        """Raise RuntimeError if the trainer's method `call` cannot be called now."""

    def leave_out_unapplied(self) -> None:
        """Take the last exchange back if no update has applied it. All workers call this."""
        return

    @abstractmethod
    def arrays(self) -> Mapping[Key, np.ndarray | NDArray]:
        """The arrays that a checkpoint needs besides the arrays of the exchange.

        RuntimeError if the last exchange may still be taken back.
        """

    @abstractmethod
    def load(self, arrays: Arrays, steps: int, learning_rates: dict[int, float]) -> None:
        """Restore the state of a checkpoint, whose arrays are already checked."""

    def check(self, file: str, arrays: Arrays, strict: bool) -> None:
        """Raise ValueError unless a file has the arrays that `arrays` returns."""
        return

    def in_full(self, header: Mapping[str, Any], arrays: Arrays) -> Arrays:
        """The arrays of a file, with those that it lacks because an earlier version saved it."""
        return arrays

    def regrouped(self, files: Sequence[Arrays]) -> Arrays:
        """The arrays of each worker that depend on the files of all workers of another number."""
        return {}

    @abstractmethod
    def expect(self, compressions: Mapping[int, Any], algorithm: Mapping[str, Any] | None) -> None:
        """Learn what a checkpoint has, before `prepare` and `load`. It is not checked yet.

        "auto" takes over the choices in the compressions, which are given by parameter index. So
        `prepare` declares what rank 0's checkpoint has, of frozen parameters too.
        """

    # Shared by the subclasses

    def _use(self, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.averagings[self._name] = weakref.ref(self)
        self._weight_check = WeightCheck(exchange, f"{self._name}.weights")

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.exchange.channels.set_epoch(self.names(), epoch)

    def stats_of_step(
        self, reset: bool = False, window: Window = STATS, steps: int = 0
    ) -> dict[str, Any]:
        """See `DistributedTrainer.compression_stats`, and `reports.stats_of_step`."""
        tensors = {self.called(*key): tensor for key, tensor in self.tensors.items()}
        return reports.stats_of_step(self.exchange, tensors, reset, window, steps)

    def tensor_name(self, suffix: str) -> str:
        """The name in the exchange of an array that belongs to the trainer."""
        return f"{self._name}.{suffix}"

    def called(self, index: int, kind: str) -> str:
        """The name of a vector for the user."""
        name = self._params[index].name
        return f"{kind} of {name}" if kind else name

    def _start(self, job: Job) -> None:
        """Start an exchange, and measure it if a report is due."""
        reporter = self.reporter
        finish = None if reporter is None else reporter.measure(job)
        self.exchange.start(job)
        if finish is not None:
            finish()

    def names(self, indices: Collection[int] | None = None) -> set[str]:
        """The names of the tensors of these parameters; None: of all parameters."""
        selected = None if indices is None else set(indices)
        return {t.name for (i, _), t in self.tensors.items() if selected is None or i in selected}

    def named_parameters(self) -> list[dict[str, Any]]:
        """Each parameter's name, position in the network, shape and dtype, for a checkpoint."""
        positions = {i: position for position, i in enumerate(reversed(self._last_first))}
        return [
            {
                "name": param.name,
                "position": positions[i],
                "shape": list(param.shape or ()),
                "dtype": np.dtype(param.dtype).name,
            }
            for i, param in enumerate(self._params)
        ]

    def with_gradients(self) -> list[int]:
        """The indices of the parameters that have gradients, in the order of backward."""
        return [i for i in self._last_first if self._params[i].grad_req != "null"]

    def _moved(self, names: Collection[str]) -> None:
        """Set the current epoch in the new channels of these tensors."""
        if self._epoch is not None:
            self.exchange.channels.set_epoch(names, self._epoch)

    def _facts(self, optimizer: Optimizer, new: Sequence[int]) -> list[tuple[str, Any]]:
        return [
            *optimizer_facts.of_optimizer(optimizer),
            *optimizer_facts.of_parameters(optimizer, {i: self._params[i] for i in new}),
        ]

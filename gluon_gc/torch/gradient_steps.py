"""The steps in which the gradients of a model are averaged."""

from __future__ import annotations

from typing import Callable, Collection, Dict, Iterable, List, Mapping, Optional, Set

import torch
from torch.futures import Future
from torch.optim import Optimizer

from ..learning_rates import LearningRates
from ..log import logger
from . import closing, header, staging
from .gradient_compression import GradientCompression
from .job import Job, future_on, resolving
from .left_out import LeftOut
from .momentum import Momentum
from .optimizer_hooks import before_step, param_groups
from .settings import facts_of, learning_rates
from .sparse import SparseJob


class GradientSteps:
    """Averages the gradients of a model's parameters, step by step.

    Hooks tell it which gradients backward has made, and when the optimizer steps.

    Parameters
    ----------
    parameters : mapping
        By name.
    compression : GradientCompression
    optimizer : Optimizer, optional
    momentum : Momentum, optional
        The momentum that is applied instead of the optimizer's.
    on_nonfinite, grad_scaler
        As `CompressionState` has them.

    Attributes
    ----------
    compression : GradientCompression
    count : int
        The number of steps so far, without those that were left out.
    rates : LearningRates
        By the parameter's name.
    left_out : LeftOut
    closed : str
        If it is closed or suspended, the error of the next step.
    when_made, when_stepping : callable
        Called with each parameter after backward has added to its gradient, and before the
        optimizer steps.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        compression: GradientCompression,
        optimizer: Optional[Optimizer],
        momentum: Optional[Momentum],
        on_nonfinite: str,
        grad_scaler: Optional[torch.amp.GradScaler],
    ) -> None:
        self._parameters, self.compression = parameters, compression
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._optimizer, self._momentum = optimizer, momentum
        self._on_nonfinite = on_nonfinite if grad_scaler is None else "propagate"
        self._grad_scaler = grad_scaler
        self.count = self._begun = 0
        self.rates, self._ratios = LearningRates(), {}
        self._nonfinite: List[str] = []  # parameters, in the last step
        self._stamp = header.SAME
        self.left_out = LeftOut(parameters.values(), self._take_back)
        self._made: Set[str] = set()  # gradients that backward has made since they were averaged
        self.when_made: Callable[[torch.Tensor], None] = lambda parameter: None
        self.when_stepping: Callable[[], None] = lambda: None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._note) for parameter in self._names
        ]
        if optimizer is not None:
            self._handles.append(before_step(optimizer, self._before_step))
        self.closed = ""
        closing.opened(self)  # the hooks keep this object alive, and nothing else may be left

    def _note(self, parameter: torch.Tensor) -> None:
        self._made.add(self._names[parameter])
        self.when_made(parameter)

    def take_made(self, names: Iterable[str]) -> Set[str]:
        """The parameters among these whose gradients backward has made since the last call."""
        made = self._made.intersection(names)
        self._made -= made
        return made

    def begin(self) -> None:
        """Begin a step."""
        if not self._begun:
            mu = self._momentum and self._momentum.mu
            self.compression.exchange.agree(facts_of(self._optimizer, mu), "begin the first step")
        if self.compression.carries:
            self.left_out.begin(allowed=bool(self._nonfinite))
        self._nonfinite = []
        self.count += 1
        self._ratios = self.rates.advance(self._current_rates())
        self._begun += 1
        checksum = header.checksum(learning_rates(self._optimizer))
        self._stamp = header.Stamp(self._begun % 2**32, self.left_out.count % 2**32, checksum)

    def _current_rates(self) -> Dict[str, float]:
        """The learning rates of the parameters that the optimizer steps, by name."""
        groups = param_groups(self._optimizer) if self._optimizer is not None else []
        return {
            self._names[parameter]: float(group.get("lr", 0.0))
            for group in groups
            for parameter in group["params"]
            if parameter in self._names
        }

    def average(
        self, gradients: Mapping[str, torch.Tensor], absent: Collection[str]
    ) -> Future[Collection[str]]:
        """As `CompressionState.average`, within a step."""
        present = [name for name in gradients if name not in absent]
        self.left_out.exchange(present)
        staged = staging.Staged(gradients)
        loss_scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0

        step, exchange = self.count, self.compression.exchange

        def result(job: Job) -> Collection[str]:
            self._check(job, step)
            staged.finish(loss_scale)
            return job.unused

        future: Future[Collection[str]] = future_on(staged.device)
        exchange.start(
            Job(
                staged,
                scale=1.0 / (loss_scale * exchange.workers),
                ratios=self._ratios,
                done=resolving(future, result),
                absent=absent,
                stamp=self._stamp if present else header.SAME,
                keeps=self.left_out.keeps,
            )
        )
        return future

    def average_sparse(
        self, name: str, gradient: Optional[torch.Tensor]
    ) -> Future[Optional[torch.Tensor]]:
        """As `CompressionState.average_sparse`, within a step."""
        compression, parameter, step = self.compression, self._parameters[name], self.count
        if name not in compression.without_momentum:
            if compression.params[name].compressor is not None:
                logger.info("the gradient of %s is sparse, and travels uncompressed", name)
            compression.without_momentum.add(name)

        def result(job: SparseJob) -> Optional[torch.Tensor]:
            self._check(job, step)
            return None if job.unused else job.result

        future: Future[Optional[torch.Tensor]] = future_on(parameter.device)
        absent = gradient is None
        values = torch.zeros_like(parameter, layout=torch.sparse_coo) if absent else gradient
        stamp = header.SAME if absent else self._stamp
        done = resolving(future, result)
        compression.exchange.start_sparse(SparseJob(name, values, absent, stamp, done))
        return future

    def _check(self, job: Job, step: int) -> None:
        """Note the gradients of a job with a NaN or an infinity; RuntimeError if asked for."""
        self._nonfinite += job.nonfinite
        if job.nonfinite and self._on_nonfinite == "raise":
            raise RuntimeError(
                f"the gradient of parameter {job.nonfinite[0]} has a NaN or an infinity in step "
                f"{step}"
            )

    def _before_step(self) -> None:
        """Let the optimizer leave this step out, or apply momentum for it."""
        self.when_stepping()
        if self._nonfinite and self._on_nonfinite == "skip":
            logger.warning(
                "step %d is left out: the gradient of parameter %s has a NaN or an infinity",
                self.count,
                self._nonfinite[0],
            )
            for group in param_groups(self._optimizer):
                for parameter in group["params"]:
                    parameter.grad = None  # the optimizer steps no such parameter
        else:
            self.apply_momentum(self._parameters)

    def apply_momentum(self, names: Iterable[str]) -> None:
        """Apply momentum to the averages in these parameters' gradients."""
        if self._momentum is not None:
            pairs = [(name, self._parameters[name]) for name in names]
            self._momentum.before_step(pairs, self.compression.without_momentum)

    def _take_back(self, names: Iterable[str]) -> None:
        """Undo the exchange of these gradients in a step that was left out."""
        self.compression.exchange.take_back(names)
        self.count -= 1
        self.rates.take_back()

    def suspend(self, why: str) -> None:
        """End the threads, until `resume`; `why` is an error's message until then."""
        self.closed = why
        self.compression.exchange.close()

    def resume(self) -> None:
        """Average over the workers that are there now, from residuals and momentum of zero."""
        self.closed = ""
        closing.opened(self)
        self.compression.open()
        self.left_out.loaded()

    def close(self) -> None:
        """Remove the hooks, give the optimizer its momentum back, and close the exchange."""
        if not self.closed:
            self.closed = "this CompressionState is closed"
            for handle in self._handles:
                handle.remove()
            if self._momentum is not None:
                self._momentum.give_back()
            self.left_out.close()
            self.compression.exchange.close()

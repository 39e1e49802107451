"""GradientSteps: averages the gradients of a model, step by step."""

from __future__ import annotations

from typing import Callable, Collection, Dict, Iterable, List, Mapping, Optional, Set

import torch
from torch.futures import Future
from torch.optim import Optimizer

from ..learning_rates import LearningRates
from ..log import logger
from . import closing, header, staging
from .additions import Additions
from .gradient_compression import GradientCompression
from .job import Job, future_on, resolving
from .left_out import LeftOut
from .momentum import Momentum
from .optimizer_hooks import before_step, param_groups, weakly
from .settings import facts_of, learning_rates
from .sparse import SparseJob


class GradientSteps:
    """Averages the gradients of a model's parameters, step by step.

    Hooks report the gradients that backward has computed, and the steps of the optimizer.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        By name.
    compression : GradientCompression
    optimizer : Optimizer, optional
    momentum : Momentum, optional
        The momentum that is applied instead of the optimizer's.
    on_nonfinite, grad_scaler
        See `CompressionState`.

    Attributes
    ----------
    compression : GradientCompression
    count : int
        The number of steps so far. A step does not count if no optimizer used its gradients.
    rates : LearningRates
        The learning rates, by parameter name.
    left_out : LeftOut
    closed : str
        If it is closed or suspended: the error message of the next step. Otherwise empty.
    when_made : callable
        Called with a parameter after backward has added to its gradient.
    when_stepping : callable
        Called without arguments before the optimizer steps.
    finish : callable
        Called without arguments before residuals and momentum are saved, loaded or configured.
        CrossBarrier waits for its exchanges.
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
        self._nonfinite: List[str] = []  # names of parameters, in the last step
        self._stamp = header.SAME
        self.left_out = LeftOut(parameters.values(), self._take_back)
        self._additions = Additions(parameters.values(), lambda: self.left_out.waits)
        self._made: Set[str] = set()  # computed by backward since they were last averaged
        self.when_made: Callable[[torch.Tensor], None] = lambda parameter: None
        self.when_stepping: Callable[[], None] = lambda: None
        self.finish: Callable[[], None] = lambda: None
        # A script may compile a whole step, but torch.compile cannot trace the hooks.
        note, stepping = map(torch.compiler.disable, (weakly(self._note), self._before_step))
        self._handles = [p.register_post_accumulate_grad_hook(note) for p in self._names]
        if optimizer is not None:
            self._handles.append(before_step(optimizer, stepping))
        self.closed = ""
        closing.opened(self)  # only the hooks may still refer to this object at shutdown

    def _note(self, parameter: torch.Tensor) -> None:
        self._made.add(self._names[parameter])
        self._additions.made(parameter)
        self.when_made(parameter)

    def take_made(self, names: Iterable[str]) -> Set[str]:
        """Return the parameters among `names` with a gradient from backward since the last call."""
        made = self._made.intersection(names)
        self._made -= made
        return made

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0."""
        self.finish()
        self.compression.set_epoch(epoch)

    def begin(self) -> None:
        """Begin a step, or continue the last one if backward has added to its averages.

        Raises
        ------
        RuntimeError
            A step is continued, but compression applies momentum.
        """
        if not self._begun:
            mu = self._momentum and self._momentum.mu
            self.compression.exchange.agree(facts_of(self._optimizer, mu), "begin the first step")
        adds, continues = self._additions.take(), False
        if self.compression.carries:
            continues = self.left_out.begin(adds, allowed=bool(self._nonfinite))
        if continues and self._momentum is not None:
            raise RuntimeError(
                "gradients were averaged twice before the optimizer's step, but compression "
                "applies momentum once for each average: use no_sync() for all backward passes of "
                "a step but the last"
            )
        self._nonfinite, self._ratios = [], {}
        if not continues:
            self.count += 1
            self._ratios = self.rates.advance(self._current_rates())
        self._begun += 1
        checksum = header.checksum(learning_rates(self._optimizer))
        self._stamp = header.Stamp(self._begun % 2**32, self.left_out.count % 2**32, checksum)

    def _current_rates(self) -> Dict[str, float]:
        """Return the learning rates of the optimizer's parameters, by name."""
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
        """See `CompressionState.average`. A step has begun."""
        present = [name for name in gradients if name not in absent]
        staged = staging.Staged(gradients)
        loss_scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0

        step, exchange = self.count, self.compression.exchange

        def result(job: Job) -> Collection[str]:
            self._check(job, step)
            staged.finish(loss_scale)
            self.rates.keep(job.unused)
            used = [name for name in gradients if name not in job.unused]
            self.left_out.exchanged(used)
            self._additions.averaged(self._parameters[name] for name in used)
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
                keeps=self.left_out.to_keep(gradients),
            )
        )
        return future

    def average_sparse(
        self, name: str, gradient: Optional[torch.Tensor]
    ) -> Future[Optional[torch.Tensor]]:
        """See `CompressionState.average_sparse`. A step has begun."""
        compression, parameter, step = self.compression, self._parameters[name], self.count
        if name not in compression.without_momentum:
            if compression.params[name].compressor is not None:
                logger.info("the gradient of %s is sparse, so it is sent uncompressed", name)
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
        """Note the gradients with a NaN or an infinity. For "raise", raise a RuntimeError."""
        self._nonfinite += job.nonfinite
        if job.nonfinite and self._on_nonfinite == "raise":
            raise RuntimeError(
                f"the gradient of parameter {job.nonfinite[0]} has a NaN or an infinity in step "
                f"{step}"
            )

    def _before_step(self) -> None:
        """Apply momentum, or make the optimizer skip this step."""
        self.when_stepping()
        if self._nonfinite and self._on_nonfinite == "skip":
            logger.warning(
                "step %d is skipped: the gradient of parameter %s has a NaN or an infinity",
                self.count,
                self._nonfinite[0],
            )
            for group in param_groups(self._optimizer):
                for parameter in group["params"]:
                    parameter.grad = None  # the optimizer does not step such parameters
        else:
            self.apply_momentum(self._parameters)

    def apply_momentum(self, names: Iterable[str]) -> None:
        """Apply momentum to the averaged gradients of these parameters."""
        if self._momentum is not None:
            pairs = [(name, self._parameters[name]) for name in names]
            self._momentum.before_step(pairs, self.compression.without_momentum)

    def _take_back(self, names: Iterable[str]) -> None:
        """Undo the exchange of these gradients, whose step was skipped."""
        self.compression.exchange.take_back(names)
        self.count -= 1
        self.rates.take_back()

    def to_undo(self) -> List[str]:
        """Return the gradients whose exchange a checkpoint must not contain."""
        return [] if self._nonfinite or not self.compression.carries else self.left_out.to_undo()

    def suspend(self, why: str) -> None:
        """Stop the threads until `resume`. A step in between raises RuntimeError(why)."""
        self.closed = why
        self.compression.exchange.close()

    def resume(self) -> None:
        """Restart with the workers of the current job. Residuals and momentum start from zero."""
        self.closed = ""
        closing.opened(self)
        self.compression.open()
        self.left_out.loaded(self.left_out.keeps)

    def close(self) -> None:
        """Remove the hooks, give the momentum back to the optimizer, and close the exchange."""
        if not self.closed:
            self.closed = "this CompressionState is closed"
            for handle in self._handles:
                handle.remove()
            if self._momentum is not None:
                self._momentum.give_back()
            self.left_out.close()
            self._additions.close()
            self.compression.exchange.close()

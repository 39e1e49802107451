"""GradientSteps: averages the gradients of a model, step by step."""

from __future__ import annotations

from typing import Callable, Collection, Dict, Iterable, List, Mapping, Optional, Set

import torch
from torch.futures import Future
from torch.optim import Optimizer

from ...learning_rates import LearningRates
from ...log import logger
from .. import closing, header, staging
from ..job import Job, future_on, resolving
from ..sparse import SparseJob
from .compression import GradientCompression
from .momentum import Momentum
from .optimizer_hooks import around_update, param_groups, weakly
from .other_optimizers import OtherOptimizers
from .scaler import ScaleWatch
from .settings import facts_of, learning_rates
from .undo import Undo
from .weight_check import WeightCheck


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
        The number of steps so far. A step does not count if no optimizer applied its averages.
    rates : LearningRates
        The learning rates, by parameter name.
    undo : Undo
    weight_check : WeightCheck
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
        self._continued: Set[str] = set()  # names whose last average is in the gradients
        skips = self._on_nonfinite == "skip"
        self._others: Optional[OtherOptimizers] = None
        if momentum is not None or skips:
            self._others = OtherOptimizers(self._names, compression, optimizer, skips)
        self.undo = Undo(parameters, self._take_back)
        self.weight_check = WeightCheck(parameters)
        self._made: Set[str] = set()  # computed by backward since they were last averaged
        self.when_made: Callable[[torch.Tensor], None] = lambda parameter: None
        self.when_stepping: Callable[[], None] = lambda: None
        self.finish: Callable[[], None] = lambda: None
        # A script may compile a whole step, but torch.compile cannot trace the hooks.
        note = torch.compiler.disable(weakly(self._note))
        self._handles = [p.register_post_accumulate_grad_hook(note) for p in self._names]
        self._leave_optimizer: Callable[[], None] = lambda: None
        if optimizer is not None:
            self._leave_optimizer = around_update(optimizer, self._before_step, self._after_step)
        self.closed = ""
        unknown = grad_scaler is None and any(p.keeps_state for p in compression.params.values())
        called = "CompressionState or DistributedOptimizer"
        self._scale_watch = ScaleWatch(parameters.values(), called) if unknown else None
        closing.opened(self)  # only the hooks may still refer to this object at shutdown

    def _note(self, parameter: torch.Tensor) -> None:
        self._made.add(self._names[parameter])
        self.undo.made()
        self.when_made(parameter)

    def take_made(self, names: Iterable[str]) -> Set[str]:
        """Return the parameters among `names` with a gradient from backward since the last call."""
        made = self._made.intersection(names)
        self._made -= made
        return made

    @property
    def has_computed(self) -> bool:
        """Whether backward has computed gradients that were not averaged."""
        return bool(self._made)

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0."""
        self.finish()
        self.compression.set_epoch(epoch)

    def begin(self) -> None:
        """Begin a step, or continue the last one if backward has added to its averages.

        Raises
        ------
        RuntimeError
            A step is continued, but compression applies momentum. Or it cannot be known which
            averages an optimizer applies, see `Undo.begin`.
        ValueError
            The optimizer's momentum is 0, or differs between parameter groups.
        """
        if not self._begun:
            mu = self._momentum and self._momentum.mu
            self.compression.exchange.agree(facts_of(self._optimizer, mu), "begin the first step")
        if self.compression.carries:
            self._continued = self.undo.begin(expected=bool(self._nonfinite))
        if self._continued and self._momentum is not None:
            raise RuntimeError(
                "gradients were averaged twice before the optimizer's step, but compression "
                "applies momentum once for each average: use no_sync() for all backward passes of "
                "a step but the last"
            )
        if self._momentum is not None:
            self._follow(self._momentum)
        if self._others is not None:
            self._others.begin()
        self._nonfinite, self._ratios = [], {}
        if not self._continued:
            self.count += 1
        rates = self._current_rates().items()
        self._ratios = self.rates.advance({n: r for n, r in rates if n not in self._continued})
        self._begun += 1
        checksum = header.checksum(learning_rates(self._optimizer))
        number, *weights = self.weight_check.begin()
        self._stamp = header.Stamp(
            self._begun % 2**32,
            self.undo.digest,
            checksum,
            sample=number,
            weight=header.bits(weights[0]),
            largest=header.bits(weights[1]),
        )

    def _follow(self, momentum: Momentum) -> None:
        """Compress with the momentum that the optimizer has now, and take over its own momentum."""
        compression, mu = self.compression, momentum.follow()
        if mu != compression.mu:
            self.finish()
            compression.set_momentum(mu)
        buffers = momentum.take_loaded(self._parameters)
        if buffers is None:
            return
        if not self._begun:
            taken = {"parameters with momentum in the optimizer's state": sorted(buffers)}
            compression.exchange.agree([("", taken)], "begin the first step")
        for name, buffer in buffers.items():
            if name in compression.without_momentum:
                momentum.replace(name, buffer)
            else:
                compression.exchange.replace_momentum(name, staging.flat(buffer))

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

        step, compression, continued = self.count, self.compression, self._continued

        def result(job: Job) -> Collection[str]:
            self.rates.keep(job.unused)
            if compression.carries:
                self.undo.exchanged(name for name in gradients if name not in job.unused)
            self._check(job, step)
            staged.finish(loss_scale)
            drawn = {n: g for n, g in gradients.items() if compression.params[n].draws}
            with staged.queue():
                self.undo.note_zeros(drawn)
            return job.unused

        future: Future[Collection[str]] = future_on(staged.device)
        compression.exchange.start(
            Job(
                staged,
                scale=1.0 / (loss_scale * compression.exchange.workers),
                ratios=self._ratios,
                done=resolving(future, result),
                absent=absent,
                stamp=self._stamp if present else header.SAME,
                continues=continued,
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
        if self._momentum is not None:
            self._momentum.take()

    def _after_step(self) -> None:
        if self._momentum is not None:
            self._momentum.after_step()

    def apply_momentum(self, names: Iterable[str]) -> None:
        """Apply momentum to the averaged gradients of these parameters."""
        if self._momentum is not None:
            pairs = [(name, self._parameters[name]) for name in names]
            self._momentum.before_step(pairs, self.compression.without_momentum)

    def _take_back(self, names: List[str], whole: bool) -> None:
        """Take back the exchange of these gradients, which are all gradients of a `whole` step."""
        self.compression.exchange.take_back(names)
        self.rates.keep(names)
        self.count -= whole

    def suspend(self, why: str) -> None:
        """Stop the threads until `resume`. A step in between raises RuntimeError(why)."""
        self.closed = why
        self.compression.exchange.close()

    def resume(self) -> None:
        """Restart with the workers of the current job. Residuals and momentum start from zero."""
        self.closed = ""
        closing.opened(self)
        self.compression.open()
        self.undo.clear()

    def close(self) -> None:
        """Remove the hooks, give the momentum back to the optimizer, and close the exchange."""
        if not self.closed:
            self.closed = "this CompressionState is closed"
            for handle in self._handles:
                handle.remove()
            self._leave_optimizer()
            if self._scale_watch is not None:
                self._scale_watch.close()
            if self._momentum is not None:
                self._momentum.give_back()
            if self._others is not None:
                self._others.close()
            self.undo.close()
            self.weight_check.close()
            self.compression.exchange.close()

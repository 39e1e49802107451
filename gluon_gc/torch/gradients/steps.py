"""GradientSteps: averages the gradients of a model, step by step."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Collection,
    Iterable,
    Mapping,
)

import torch
from torch.futures import Future
from torch.optim import Optimizer

from ... import env
from ...compression import CompressionParams, candidates
from ...compression.learning_rates import LearningRates
from ...exchange import header
from ...exchange.exchange import DeclaredTensor
from ...exchange.job import Request, Result
from ...exchange.plan import applies_momentum, travels_compressed
from ...log import logger
from .. import automatic, closing
from ..transport import Groups, gpu, new_exchange, staging
from ..transport.sparse import SparseRequest, start_sparse
from ..transport.staging import Names, declared, future_on
from .checks import OptimizerCheck, WeightCheck
from .momentum import Momentum
from .optimizer_hooks import around_update, param_groups, weakly
from .pending import Pending
from .scaler import ScaleWatch
from .settings import facts_of, learning_rates
from .undo import Undo

if TYPE_CHECKING:
    from ..optimizer.distributed import Averager
    from ..reports import GradientReporter


def _same() -> header.Stamp:
    """Return the stamp of a worker without gradients."""
    return header.SAME


class GradientCompression:
    """The compression of each parameter's gradient, and the exchange that sends the gradients.

    All workers create it together, with the requested compression by parameter name. "auto" is
    replaced by a measured choice.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        params: Mapping[str, CompressionParams],
        on_nonfinite: str,
        groups: Groups,
    ) -> None:
        self._parameters, self.requested = parameters, params
        self._on_nonfinite, self._groups = on_nonfinite, groups
        undecided = {name: own for name, own in params.items() if own.accuracy is not None}
        self.choices: Mapping[str, str] = {}  # of "auto", by parameter: the candidates' names
        if undecided:
            tensors = [tensor.plan for tensor in self._declared(undecided)]
            self.choices = automatic.chosen(tensors, groups)
        self._epoch: int | None = None
        self.mu: float | None = None  # of all parameters with momentum; None: of their params
        self.open()

    def open(self) -> None:
        """Create the exchange, or a new one after the first was closed."""
        self.params: dict[str, CompressionParams] = dict(self.requested)
        for name, choice in self.choices.items():
            self.params[name] = candidates(self.requested[name], inner=True)[choice]
        tensors = self._declared(self.params)
        self.exchange = new_exchange(*self._groups)
        self.lane = self.exchange.lane()
        self.lane.declare(tensors, about=[("", {"algorithm": None})])  # a worker may have one
        if self._epoch is not None:
            self.lane.set_epoch(self._epoch)
        if self.mu is not None:
            self.lane.set_momentum(self.mu)
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        compressed = [t.plan.params for t in tensors if travels_compressed(t.plan, minimum)]
        self.drawn = {name for name, params in self.params.items() if params.draws}  # at random
        # Whose residuals follow the learning rate: names by the parameter's id.
        self.follow_rates = {
            id(self._parameters[n]): n for n, params in self.params.items() if params.follows_rates
        }
        # Whether workers keep a residual or momentum for any gradient.
        self.keeps_state = any(params.keeps_state for params in compressed)
        self.without_momentum: set[str] = {  # their compressor applies no momentum
            tensor.plan.name for tensor in tensors if not applies_momentum(tensor.plan, minimum)
        }

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0. No gradients may be under way."""
        self._epoch = epoch
        self.lane.set_epoch(epoch)

    def set_momentum(self, mu: float) -> None:
        """Use this momentum coefficient from now on. No gradients may be under way."""
        self.mu = mu
        self.lane.set_momentum(mu)

    def choose(self, choices: Mapping[str, str]) -> None:
        """Use these choices of "auto". All workers call this, with no gradients under way."""
        if choices != self.choices:
            self.choices = choices
            self.exchange.close()
            self.open()

    def _declared(self, params: Mapping[str, CompressionParams]) -> list[DeclaredTensor]:
        """Return the gradients of these parameters, about in the order of backward: last first."""
        numbered = reversed(list(enumerate(self._parameters.items())))
        return [
            declared(
                name,
                parameter,
                params[name],
                index,
                called=f"the gradient of parameter {name}",
                on_nonfinite=self._on_nonfinite,
            )
            for index, (name, parameter) in numbered
            if name in params
        ]


class GradientSteps:
    """Averages the gradients of a model's parameters, step by step.

    It sees the gradients that backward has computed, and the steps of the optimizer.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        compression: GradientCompression,
        optimizer: Optimizer | None,
        momentum: Momentum | None,
        on_nonfinite: str,
        grad_scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._parameters, self.compression = parameters, compression
        self._optimizer, self._momentum = optimizer, momentum
        self._on_nonfinite = on_nonfinite if grad_scaler is None else "propagate"
        self._grad_scaler = grad_scaler
        self.count = 0  # the steps so far, without those whose averages no optimizer applied
        self.shadows = False  # only other workers make this step: this one only exchanges zeros
        self._begun = 0
        self.rates, self._ratios = LearningRates(), {}  # by parameter name
        self._nonfinite: list[str] = []  # names of parameters, in the last step
        # Where the gradients are in DDP's buckets, by name, for the ids of a bucket's parameters.
        self.bucket_slices: dict[tuple[int, ...], dict[str, slice]] = {}
        self._stamp, self._loss_scale = _same, 1.0
        self.pending = Pending()
        self._continued: set[str] = set()  # names whose last average is in the gradients
        self._at_close = ExitStack()
        if momentum is not None:
            self._at_close.callback(momentum.give_back)
        skips = self._on_nonfinite == "skip"
        self._optimizer_check: OptimizerCheck | None = None
        if momentum is not None or skips:
            self._optimizer_check = OptimizerCheck(parameters, compression, optimizer, skips)
            self._at_close.callback(self._optimizer_check.leave)
        self.undo = Undo(parameters, self._take_back)
        self._at_close.callback(self.undo.leave)
        self.weight_check = WeightCheck(parameters)
        self._at_close.callback(self.weight_check.leave)
        self._averager: Averager | None = None
        self.reporter: GradientReporter | None = None  # of `bps.report`
        if optimizer is not None:
            leave_optimizer = around_update(optimizer, self._before_step, self._after_step)
            self._at_close.callback(leave_optimizer)
        self.closed = ""  # if it is closed or suspended: the error message of the next step
        if grad_scaler is None and any(p.keeps_state for p in compression.params.values()):
            called = "CompressionState or DistributedOptimizer"
            self._at_close.callback(ScaleWatch(parameters.values(), called).close)
        closing.opened(self)  # only the hooks may still refer to this object at shutdown

    def follow(self, averager: Averager) -> None:
        """Tell an averager of gradients and steps. It starts the exchanges."""
        self._averager, ready = averager, weakly(averager.ready)
        for parameter in self._parameters.values():
            handle = parameter.register_post_accumulate_grad_hook(ready)
            self._at_close.callback(handle.remove)

    @property
    def updates_late(self) -> bool:
        """Whether updates are made after the optimizer's step."""
        return self._averager is not None and self._averager.updates_late

    def finish(self) -> None:
        if self._averager is not None:
            self._averager.finish()
        self.pending.wait()

    def take_computed(self, names: Iterable[str]) -> set[str]:
        """Return the parameters among `names` with a gradient from backward since the last call."""
        computed = self.undo.computed.intersection(names)
        self.undo.computed.difference_update(computed)
        return computed

    @property
    def has_computed(self) -> bool:
        """Whether backward has computed gradients that were not averaged."""
        return bool(self.undo.computed)

    def set_epoch(self, epoch: int) -> None:
        """Tell the compressors the epoch, counted from 0."""
        self.finish()
        self.compression.set_epoch(epoch)

    def begin(self) -> None:
        """Begin a step, or continue the last one if backward has added to its averages."""
        self.pending.wait()
        if not self._begun:
            mu = self._momentum and self._momentum.mu
            self.compression.exchange.agree(facts_of(self._optimizer, mu), "begin the first step")
        if self.compression.keeps_state:
            self._continued = self.undo.begin(expected=bool(self._nonfinite))
        if self._continued and self._momentum is not None:
            raise RuntimeError(
                "gradients were averaged twice before the optimizer's step, but compression "
                "applies momentum once for each average: use no_sync() for all backward passes of "
                "a step but the last"
            )
        if self._momentum is not None:
            self._follow_momentum(self._momentum)
        if self._optimizer_check is not None:
            self._optimizer_check.begin()
        self._nonfinite = []
        if self.reporter is not None and not self._continued:
            self.reporter.begin()
        if not self._continued:
            self.count += 1
        self._ratios = self.rates.advance(self._current_rates())
        if self._grad_scaler is not None:
            self._loss_scale = self._grad_scaler.get_scale()  # it waits for a GPU
        self._begun += 1
        if self.shadows:
            self.weight_check.skip()
            return
        checksum = header.checksum(learning_rates(self._optimizer))
        stamp = header.Stamp(self._begun % 2**32, self.undo.digest, checksum)
        read_sample = self.weight_check.begin()

        @lru_cache(maxsize=None)  # once
        def with_sample() -> header.Stamp:
            sample, weight, largest = read_sample()
            weight, largest = header.bits(weight), header.bits(largest)
            return stamp._replace(sample=sample, weight=weight, largest=largest)

        self._stamp = with_sample

    def _follow_momentum(self, momentum: Momentum) -> None:
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
            if name in compression.without_momentum or buffer.is_sparse:
                momentum.replace(name, buffer)
            else:
                compression.lane.replace_momentum(name, staging.flat(buffer).cpu().numpy())

    def _current_rates(self) -> dict[str, float]:
        """Return the learning rates by name, of parameters that begin a step and follow them."""
        rates: dict[str, float] = {}
        names = self.compression.follow_rates
        for group in param_groups(self._optimizer) if names else ():
            rate = float(group.get("lr") or 0.0)  # Adafactor's lr is None by default
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name is not None and name not in self._continued:
                    rates[name] = rate
        return rates

    def average(
        self, gradients: Mapping[str, torch.Tensor], absent: Collection[str]
    ) -> Future[Collection[str]]:
        """See `CompressionState.average`. A step has begun."""
        loss_scale, step = self._loss_scale, self.count
        skips = self._grad_scaler is not None or self._on_nonfinite != "propagate"
        shadows, nonfinite = self.shadows, self._nonfinite if skips else ()
        compression, continued = self.compression, self._continued
        lane, finish_report = compression.lane, None
        if self.reporter is not None:
            finish_report = self.reporter.measure(lane, gradients, loss_scale)
        staged = staging.Staged(gradients)

        def result(found: Result) -> Collection[str]:
            if found.unused:
                self.rates.keep(found.unused)
            if compression.keeps_state:
                names = [name for name in gradients if name not in found.unused]
                self.undo.exchanged(names, skipped=nonfinite if shadows else None)
            self._check(found, step)
            staged.finish(loss_scale)
            with staged.queue():
                self.undo.note_zeros(gradients, compression.drawn)
                if finish_report is not None:
                    finish_report()
            return Names(found.unused, staged)

        future: Future[Collection[str]] = future_on(staged.device)
        is_present = any(name not in absent for name in gradients)
        stamp = self._stamp if is_present else _same
        request = Request(
            staged,
            divisor=loss_scale,
            ratios=self._ratios,
            absent=absent,
            stamp=stamp,
            continues=continued,
        )
        self.pending.start(partial(lane.start, request), future, result, staged)
        return future

    def average_sparse(
        self, name: str, gradient: torch.Tensor | None
    ) -> Future[torch.Tensor | None]:
        """See `CompressionState.average_sparse`. A step has begun."""
        compression, parameter, step = self.compression, self._parameters[name], self.count
        if name not in compression.without_momentum:
            if compression.params[name].compressor is not None:
                logger.info("the gradient of %s is sparse, so it is sent uncompressed", name)
            compression.without_momentum.add(name)

        def result(found: Result) -> torch.Tensor | None:
            self._check(found, step)
            return None if found.unused else averages[0]

        future: Future[torch.Tensor | None] = future_on(parameter.device)
        absent = gradient is None
        values = torch.zeros_like(parameter, layout=torch.sparse_coo) if absent else gradient
        stamp = _same if absent else self._stamp
        averages: list[torch.Tensor] = []
        ready = gpu.mark(values.device)
        request = SparseRequest(name, values, averages.append, absent, stamp=stamp, ready=ready)
        start = partial(start_sparse, compression.exchange, request)
        self.pending.start(start, future, result)
        return future

    def _check(self, found: Result, step: int) -> None:
        """Note the gradients with a NaN or an infinity. For "raise", raise a RuntimeError."""
        self._nonfinite += found.nonfinite
        if found.nonfinite and self._on_nonfinite == "raise":
            raise RuntimeError(
                f"the gradient of parameter {found.nonfinite[0]} has a NaN or an infinity in step "
                f"{step}"
            )

    def _before_step(self) -> None:
        """Apply momentum, or make the optimizer skip this step."""
        if self._averager is not None:
            self._averager.before_step()
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
        if self._momentum is not None:
            pairs = [(name, self._parameters[name]) for name in names]
            self._momentum.before_step(pairs, self.compression.without_momentum)

    def _take_back(self, names: list[str], whole: bool) -> None:
        """Take back the exchange of these gradients, which are all gradients of a `whole` step."""
        self.compression.lane.take_back(names)
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
            self._at_close.close()
            if self.reporter is not None:
                self.reporter.close()
            self.compression.exchange.close()

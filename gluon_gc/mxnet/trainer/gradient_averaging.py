"""Averages all gradients in every step: the default of a trainer, without an algorithm."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Collection, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from ... import env
from ...auto.selection import saved_choices
from ...exchange.agreement import Facts
from ...exchange.plan import applies_momentum, travels_compressed
from ...log import logger
from ...state import OF_ALL, Arrays, Key
from ..engine.operators import clip_factor
from ..exchange.exchange import Exchange
from ..exchange.gradient import Gradient, Job, sums_of
from ..state import tensor_states
from . import freshness
from .automatic import of_root, settled
from .averaging import Averaging, StepArguments, Update
from .momentum import Momentum, require_outside
from .optimizer_facts import next_rate
from .parameters import gradient_of, tensor_of

_ROOM_UNDER_AMP = 10  # bits by which float16 averages may be larger than gradients


@dataclass
class _Averages:
    """The averages of a trainer's last exchange, until they are applied or taken back."""

    indices: Sequence[int] = ()  # of the parameters whose gradients were exchanged
    batch_size: float | None = None  # by which the gradients were divided before the exchange
    # The arrays of the parameters whose gradients were fresh. They are stale since the exchange, so
    # that no later exchange takes an average for a fresh gradient.
    fresh: Sequence[NDArray] = ()
    unit: float = 1.0  # of the float16 averages
    stale: str = ""  # the first parameter whose stale gradient was averaged like a fresh one
    names: set[str] | None = None  # the tensors, if the exchange can be taken back
    excluded: bool = False  # whether it is taken back in any case, because of `not_applied`
    tried: bool = False  # whether an update has begun to apply them; if it raises, no other may
    skipped: bool = False  # whether all workers leave out this step: nothing to apply or take back

    def divisor(self, batch_size: float) -> float:
        """The number that the averages are still to be divided by."""
        if self.batch_size is None:
            return batch_size
        if batch_size != self.batch_size:
            raise ValueError(
                f"batch_size must be {self.batch_size!r} as in allreduce_grads, got {batch_size!r}"
            )
        return 1


class GradientAveraging(Averaging):
    """Averages all gradients of a trainer in every step.

    An exchange whose averages no update applies is taken back, so that it leaves no trace in
    residuals, in momentum, in random streams and in the learning rates of the last exchange. Codecs
    and momentum then have two sets of arrays: an exchange reads one and writes the other. To take
    an exchange back, the set that it has read becomes the current one. Nothing is copied.
    """

    noun = "gradient"

    def __init__(
        self, momentum: Momentum | None, max_grad_norm: float | None, **common: Any
    ) -> None:
        super().__init__(**common)
        self._momentum, self._max_grad_norm = momentum, max_grad_norm
        self.mu = None if momentum is None else momentum.mu
        self._choices: dict[int, str] = {}  # of "auto", by index: the candidates' names
        self._reused: dict[str, Gradient] = {}
        self._momentum_after: set[int] = set()  # indices whose compressor applies none
        self._stateful: set[int] = set()  # indices to declare even if they are frozen
        self._unit: float | None = None  # of float16 averages; all workers agree in the first step
        self._nonfinite = 0  # the number of averages so far that were not finite
        self._undoable = False  # whether later exchanges can be taken back
        self._keeps_earlier = False  # whether all channels keep the state before an exchange
        if self._on_nonfinite == "skip":
            self._make_undoable()
        self._averages: _Averages | None = None  # that are neither applied nor taken back
        self._not_applied = False  # whether averages are taken back in any case
        self._ever_applied = False
        self._warned_of_unapplied = False
        self._divisor: float | None = None  # of the last averages, after compression
        self._warned_of_batch_size = False

    def follow(self, exchange: Exchange, goes_on: bool) -> bool:
        self._use(exchange)
        self._stateful = {i for i, _ in self.tensors} if goes_on else set()
        self.tensors.clear()
        self._averages = self._unit = None
        self._keeps_earlier = False
        self._nonfinite = 0
        self._momentum_after.clear()
        if not goes_on:  # new workers start without them, and all workers must be equal
            self.learning_rates.last.clear()
            if self._momentum is not None:
                self._momentum.clear()
        return True

    def prepare(self, optimizer: Optimizer, call: str, about: Facts = ()) -> None:
        indices = self.with_gradients()
        declared = self._stateful.union(indices)
        new = [i for i in self._last_first if i in declared and (i, "") not in self.tensors]
        if not new:
            return
        self.exchange.withdraw_dropped(call, about)
        tensors = [
            tensor_of(
                f"{self._name}.{i}",
                self._params[i],
                i,
                self._compressions.of(i),
                self._on_nonfinite,
            )
            for i in new
        ]
        gradients = [gradient_of(self._params[i]) for i in new]
        tensors = settled(self.exchange, tensors, gradients, self._choices)
        facts = [*about, *self._facts(optimizer, new)]
        self.exchange.declare(tensors, about=facts, call=call)
        self.tensors.update(((tensor.index, ""), tensor) for tensor in tensors)
        self._when_prepared()
        self._moved([tensor.name for tensor in tensors])
        if self._momentum is not None:
            self._momentum_after.update(
                tensor.index for tensor in tensors if not applies_momentum(tensor, _minimum())
            )

    def _moved(self, names: Sequence[str]) -> None:
        super()._moved(names)
        self._keeps_earlier = False
        if self._on_nonfinite == "skip":
            self._nonfinite = self.exchange.channels.nonfinite(self.names())

    # A step

    def step(self, arguments: StepArguments, update: Update) -> None:
        self._average(arguments, in_step=True)
        self._apply(update, 1.0, arguments.ignore_stale_grad)

    def average(self, arguments: StepArguments) -> None:
        """Replace the gradients by their averages; an update, if any, applies them."""
        self._make_undoable()
        self._average(arguments)

    def _make_undoable(self) -> None:
        """Let later exchanges be taken back. All workers call this before the same exchange."""
        self._undoable = True
        if self._momentum is not None:
            self._momentum.keep_earlier()

    def _average(self, arguments: StepArguments, in_step: bool = False) -> None:
        """Exchange the gradients, and take the exchange back if the step is left out.

        `in_step`: the update follows at once, so weights must be equal now, and the script does not
        see the averages before, so float16 averages may have a unit.
        """
        optimizer, scaler = arguments.optimizer, arguments.scaler
        batch_size, ignore_stale_grad = arguments.batch_size, arguments.ignore_stale_grad
        if self._momentum is not None:
            # load_states may have replaced the optimizer.
            require_outside(optimizer, self._momentum.mu)
        self.leave_out_unapplied()
        shared = {
            "algorithm": None,
            "ignore_stale_grad": bool(ignore_stale_grad),
            "max_grad_norm": self._max_grad_norm,
            "AMP": scaler is not None,
        }
        about = [("the trainer", shared)]
        indices = self._to_exchange(ignore_stale_grad, about)
        if scaler is not None and scaler.check([self._params[i] for i in indices], about):
            freshness.use_up(self._params)
            # On all workers: the check is collective.
            self._averages = _Averages(batch_size=batch_size, skipped=True)
            return
        self.prepare(optimizer, "step", about)
        if in_step and indices:  # before the exchange: its error then leaves no averages
            self._check_weights(self.steps + 1)
        unit = self._unit_of_half(arguments, indices, about) if in_step else 1.0
        gradients = {i: self._params[i].list_grad() for i in indices}
        ratios = self._ratios(optimizer, indices)
        names = self.names(indices)
        if _separate(self.exchange, names, ratios):
            self._moved(self.names())
        job = None
        if indices:
            job = self._job(gradients, arguments.scale / (batch_size or 1), ratios, unit)
        self.steps += 1
        if self._undoable:
            if not self._keeps_earlier:
                self.exchange.keep_earlier(self.names())
                self._keeps_earlier = True
            if self._momentum is not None:
                self._momentum.begin()
        stale = "" if ignore_stale_grad else freshness.first_stale(self._params)
        fresh = freshness.use_up(self._params)
        undoable = names if self._undoable else None
        self._averages = _Averages(
            indices, batch_size, fresh, unit, stale, undoable, excluded=self._not_applied
        )
        if job is not None:
            self._start(job)
        if self._on_nonfinite == "skip" and self._found_nonfinite():
            self._take_back()
            self._averages = _Averages(batch_size=batch_size, skipped=True)
            return
        if batch_size is not None:
            self._divisor = 1
        for i in indices:
            if i in self._momentum_after:
                own_unit = unit if self._is_half(i) else 1.0
                self._momentum.add_to_gradient(i, gradients[i], own_unit)

    def total_overflow(self, overflow: NDArray, about: Facts) -> NDArray:
        return self.exchange.total(f"{self._name}.overflow", overflow, "step", about)

    @property
    def has_averages(self) -> bool:
        """Whether the last exchange left averages, or a step to leave out, for an update."""
        averages = self._averages
        return averages is not None and not (averages.excluded or averages.tried)

    def update(self, batch_size: float, ignore_stale_grad: bool, update: Update) -> None:
        averages = self._averages
        if ignore_stale_grad and averages.stale:
            raise ValueError(
                f"the gradient of {averages.stale} was stale when it was averaged: call "
                "allreduce_grads(ignore_stale_grad=True) before update(..., ignore_stale_grad=True)"
            )
        divisor = averages.divisor(batch_size)
        if not averages.skipped:
            before, self._divisor = self._divisor, divisor
            if before not in (None, divisor):
                self._warn_of_batch_size(batch_size)
            if not ignore_stale_grad:
                freshness.require_fresh(self._params, averages.fresh)
        if averages.indices:
            self._check_weights(self.steps)
        self._apply(update, 1.0 / divisor, ignore_stale_grad)

    def _check_weights(self, step: int) -> None:
        """Count an update of this step; raise RuntimeError if the last check found a difference."""
        trained = [self._params[i] for i in self.with_gradients()]
        self._weight_check.before_update(trained, step)

    def _apply(self, update: Update, rescale: float, ignore_stale_grad: bool) -> None:
        """Apply the averages, unless the step is left out. If this raises, they are not applied."""
        if self._averages.skipped:
            self._averages = None
            return
        freshness.restore(self._averages.fresh)
        self._averages.tried = True
        update(rescale, ignore_stale_grad, self._averages.unit)
        self.applied()

    # Averages that are not applied

    def applied(self) -> None:
        self._averages = None
        self._ever_applied = True

    def require(self, call: str) -> None:
        if call in ("step", "update", "applied") and self._not_applied:
            raise RuntimeError(
                f"{call}() updates parameters, so it cannot be called inside not_applied(): call "
                "it after the `with` block"
            )

    def _require_settled(self) -> None:
        """Raise RuntimeError if the state has an exchange that may still be taken back."""
        name = None if self._averages is None else self._with_state(self._averages.indices)
        if name is not None:
            raise RuntimeError(
                f"save_states() cannot save the residual or momentum of {name}, because the "
                "averages of the last exchange are not applied: first call update(), or "
                "trainer.applied() if the script has applied them; or take the exchange back with "
                "`with trainer.not_applied(): pass` on all workers"
            )

    @contextmanager
    def not_applied(self) -> Iterator[None]:
        """A context manager whose exchanges are taken back; see `DistributedTrainer`."""
        self.leave_out_unapplied()
        self._not_applied = True
        try:
            yield
        finally:
            self._not_applied = False
        self.leave_out_unapplied()
        freshness.use_up(self._params)

    def leave_out_unapplied(self) -> None:
        averages = self._averages
        if averages is None or averages.skipped:
            self._averages = None
            return
        if not averages.excluded:
            self._require_known(averages)
        self._take_back()

    def _require_known(self, averages: _Averages) -> None:
        """Raise RuntimeError unless these averages are known to be unused."""
        indices, name = averages.indices, self._with_state(averages.indices)
        if name is not None and averages.names is None:
            raise RuntimeError(
                "the update of the last step() raised an error, so it cannot be known whether it "
                f"has applied the averages, and the residual or momentum of {name} cannot return "
                "to its state before them: call trainer.applied() on all workers to keep the "
                "exchange, or load a checkpoint. With allreduce_grads(batch_size) and "
                "update(batch_size) instead of step(batch_size), such an exchange is taken back"
            )
        unknown = self._with_state([i for i in indices if self._params[i].grad_req == "add"])
        if unknown is not None:
            self._averages = None  # they stay in the gradients, so this exchange stays too
            raise RuntimeError(
                f"gradients were averaged twice without update(), and {unknown} has "
                "grad_req='add': its gradient may still contain the first averages. Average once, "
                "after the last backward pass. If the first averages are not applied, make their "
                "exchange inside `with trainer.not_applied():`"
            )
        if name is not None and not self._ever_applied and not self._warned_of_unapplied:
            self._warned_of_unapplied = True
            logger.warning(
                "allreduce_grads() was called twice, and there was no update() yet: the first "
                "averages count as not applied, so the residual or momentum of %s returns to its "
                "state before them. If the script applies averages without update(), call "
                "trainer.applied() afterwards",
                name,
            )

    def _take_back(self) -> None:
        """Undo the last exchange. One that cannot be undone has changed no state."""
        if self._averages.names is not None:
            self.exchange.take_back(self._averages.names)
            self.learning_rates.take_back()
            if self._momentum is not None:
                self._momentum.take_back()
        self._averages = None
        self.steps -= 1

    def _to_exchange(self, ignore_stale_grad: bool, about: Facts) -> list[int]:
        """The parameters whose gradients this step exchanges, in the order of backward."""
        indices = self.with_gradients()
        if not ignore_stale_grad:
            return indices
        flags = f"{self._name}.fresh"
        fresh = freshness.fresh_anywhere(self.exchange, flags, self._params, about)
        return [i for i in indices if fresh[i]]

    def _unit_of_half(
        self, arguments: StepArguments, indices: Sequence[int], about: Facts
    ) -> float:
        """The unit of a step's float16 averages: a power of two, equal on all workers.

        An optimizer with master weights multiplies by it in float32. It is about scale / batch_size
        of the first step, so an average is about as large as the gradients that it is made of. AMP
        scales the loss until gradients almost overflow, so there is room for sums of several steps.
        """
        if not (arguments.optimizer.multi_precision and any(map(self._is_half, indices))):
            return 1.0
        scaled_by_amp = arguments.scaler is not None
        if self._unit is None or scaled_by_amp:
            mantissa, exponent = math.frexp(arguments.scale / arguments.batch_size)
            exponent += _ROOM_UNDER_AMP * scaled_by_amp - (abs(mantissa) == 0.5)
            array = mx.nd.array([exponent])
            total = self.exchange.total(f"{self._name}.unit", array, "step", about)
            self._unit = 2.0 ** math.ceil(total.asscalar() / self.exchange.num_workers)
        return self._unit

    def _is_half(self, index: int) -> bool:
        return self.tensors[index, ""].dtype == "float16"

    def _ratios(self, optimizer: Optimizer, indices: Sequence[int]) -> dict[str, float]:
        """Previous learning rate / current one, where that is not 1, by tensor."""
        follow = [i for i in indices if self.tensors[i, ""].params.follows_rates]
        rates = dict.fromkeys(follow, next_rate(optimizer, indices)) if follow else {}
        ratios = self.learning_rates.advance(rates)
        return {self.tensors[i, ""].name: ratio for i, ratio in ratios.items()}

    def _job(
        self,
        arrays: Mapping[int, Sequence[NDArray]],
        scale: float,
        ratios: Mapping[str, float],
        unit: float,
    ) -> Job:
        gradients = {}
        for i, copies in arrays.items():
            name = self.tensors[i, ""].name
            gradients[name] = self._gradient(name, copies)
            gradients[name].unit = unit if self._is_half(i) else 1.0
        factor = None
        if self._max_grad_norm is not None:
            floating = [tensor.name for tensor in self.tensors.values() if tensor.floating]
            arrays_of_norm = sums_of([gradients[name] for name in floating if name in gradients])
            factor = clip_factor(arrays_of_norm, scale, self._max_grad_norm)
        return Job(gradients, scale / self.exchange.num_workers, factor, ratios)

    def _gradient(self, name: str, arrays: Sequence[NDArray]) -> Gradient:
        """The Gradient of a tensor, reused from step to step where possible."""
        gradient = self._reused.get(name)
        if gradient is None or not gradient.is_of(arrays):
            gradient = self.exchange.channels.gradient(name, arrays, arrays)
            if gradient.is_of(arrays):
                self._reused[name] = gradient
        return gradient

    def _warn_of_batch_size(self, batch_size: float) -> None:
        """Warn once if residuals or momentum belong to sums over batches of another size."""
        name = self._with_state([i for i, _ in self.tensors])
        if name is not None and not self._warned_of_batch_size:
            self._warned_of_batch_size = True
            logger.warning(
                "the batch size of update() has changed to %s, but the residual or momentum of %s "
                "belongs to sums over batches of another size: pass batch_size to "
                "allreduce_grads(), too",
                batch_size,
                name,
            )

    def _with_state(self, indices: Sequence[int]) -> str | None:
        """The name of the first of these parameters with a residual or momentum, if any."""
        for i in indices:
            tensor = self.tensors[i, ""]
            compressed = travels_compressed(tensor, _minimum())
            if i in self._momentum_after or (tensor.params.keeps_state and compressed):
                return self._params[i].name
        return None

    def _found_nonfinite(self) -> bool:
        """Whether this step's averages are not finite: the same on all workers; waits for them."""
        before = self._nonfinite
        self._nonfinite = self.exchange.channels.nonfinite(self.names())
        return self._nonfinite > before

    # Checkpoints

    def arrays(self) -> Mapping[Key, np.ndarray]:
        """The momentum of uncompressed gradients, and the weight decay's part of the momentum."""
        self._require_settled()
        if self._momentum is None:
            return {}
        return {
            Key(index, OF_ALL, "/".join(["momentum", *map(str, context)])): array
            for (index, *context), array in self._momentum.state().items()
        }

    def load(self, arrays: Arrays, steps: int, learning_rates: dict[int, float]) -> None:
        self._averages = None
        self.steps, self.learning_rates.last = steps, learning_rates
        if self._momentum is not None:
            self._momentum.load_state(
                {
                    (key.tensor, *map(int, key.what.split("/")[1:])): array
                    for key, array in arrays.items()
                },
                self._params,
            )

    def expect(self, compressions: Mapping[int, Any], algorithm: Mapping[str, Any] | None) -> None:
        requested = {i: self._compressions.of(i) for i in self._last_first}
        self._choices = {**saved_choices(requested, compressions), **self._choices}
        stateful = [i for i, compression in compressions.items() if compression is not None]
        self.exchange.agree("load_states")
        self._stateful = set(of_root(self.exchange, stateful))


def _minimum() -> int:
    return env.get("BYTEPS_MIN_COMPRESS_BYTES")


def _separate(exchange: Exchange, names: Collection[str], ratios: Mapping[str, float]) -> bool:
    """Give tensors messages of their own if a shared message cannot be exchanged as it is.

    The coder of a message compresses all of its chunks in every exchange. A tensor that takes no
    part would be compressed as zeros: its residual and momentum would change, and the result would
    be lost. Tensors of a message must also have one ratio. Residuals, momentum and random streams
    move with the tensors. All workers make the same call, which returns whether any was moved.
    """
    split: set[str] = set()
    for channel in exchange.channels.of(names):
        if channel.params is not None and channel.params.keeps_state:
            different = len({ratios.get(name, 1.0) for name in channel.tensors}) > 1
            if different or not channel.tensors <= names:
                split |= channel.tensors
    if not split:
        return False
    together = _with_all_that_share(exchange, split)
    arrays = dict(tensor_states.state(exchange, together))
    exchange.declare(exchange.withdraw(together), share_messages=False)
    tensor_states.load(exchange, together, arrays)
    return True


def _with_all_that_share(exchange: Exchange, names: set[str]) -> set[str]:
    """These tensors, and all tensors that share messages with them, directly or indirectly."""
    while True:
        sharing = {name for channel in exchange.channels.of(names) for name in channel.tensors}
        if sharing <= names:
            return names
        names = names | sharing

"""CrossingAverager: averaging that continues while the next step runs its forward pass.

step() returns before the averages are complete. Each parameter is updated just before the forward
that needs it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Collection, Dict, Iterable, Iterator, List, NamedTuple, Optional, Type

import torch
from torch.nn import Module
from torch.optim import Optimizer

from . import gpu
from .gates import Gates
from .gradients.optimizer_hooks import param_groups, require_averaged
from .gradients.state import CompressionState
from .optimizer.averager import Averager, Bucket, UnderWay
from .pace import Pace, reordered

_MEASURED = 4  # steps that are measured before the buckets are reordered


class _Update(NamedTuple):
    """A pending update of the parameters of one bucket.

    Parameters
    ----------
    under_way : UnderWay
        The averages of their gradients.
    groups : list of dict
        The optimizer's parameter groups at the time of its step.
    """

    under_way: UnderWay
    groups: List[Dict[str, Any]]


class CrossingAverager(Averager):
    """Averages the gradients of an optimizer's parameters, and applies its updates late.

    Parameters
    ----------
    model : Module
        The module that has the parameters.
    kind : type
        The optimizer's class. It must update each parameter independently.
    num_steps : int
        The number of steps. The last one waits for its updates.
    optimizer, passes, state
        See `Averager`.
    """

    def __init__(
        self,
        model: Module,
        kind: Type[Optimizer],
        num_steps: int,
        optimizer: Optimizer,
        passes: int,
        state: CompressionState,
    ) -> None:
        self._kind, self._left_steps = kind, num_steps
        self._updates: Dict[torch.Tensor, _Update] = {}  # pending ones, by parameter
        self._late: Collection[torch.Tensor] = ()  # parameters that were only updated in backward
        self._gates = Gates(model, self._enter)
        self._pace, self._reordered = Pace(), False
        super().__init__(optimizer, passes, state)
        state.gradients.finish = self.finish
        state.gradients.weight_check.close()  # workers may apply their last updates at other times

    # Backward

    def _hand_over(self, all_of_them: bool = False) -> None:
        first = not self._under_way
        if first and not self._reordered and self._pace.begun == _MEASURED:
            self._reorder()
        super()._hand_over(all_of_them)
        if first and self._under_way:
            self._pace.begin()

    def _dense(self, bucket: Bucket, begins: bool) -> UnderWay:
        under_way = super()._dense(bucket, begins)
        self._pace.follow(under_way.future)
        return under_way

    def _reorder(self) -> None:
        """Put the buckets whose averaging backward does not hide in the order of forward.

        On a GPU, all buckets keep their order: there, backward still runs when this thread has
        returned from it, so the measurement does not show what backward hides.
        """
        on_host = all(gpu.in_host_memory(p.device) for p in self.state.parameters.values())
        own = self._pace.share() if on_host else 1.0
        shares = self.state.exchange.gather_objects(own, "begin a step")
        share = max((measured for measured in shares if measured is not None), default=1.0)
        sizes = [sum(p.numel() * p.itemsize for p in bucket) for bucket in self._buckets]
        self._buckets, self._reordered = reordered(self._buckets, sizes, share), True

    def _ready(self, parameter: torch.Tensor) -> None:
        if self._updates:
            self._late = set(self._updates)
            self.finish()
        if parameter in self._late:
            raise RuntimeError(
                f"parameter {self.state.name_of(parameter)} was used before its update was "
                "applied: CrossBarrier applies it before the module's forward that used the "
                "parameter in the first step; use DistributedOptimizer instead"
            )
        super()._ready(parameter)

    def _finish_backward(self) -> None:
        if self._buckets is None:  # only the first step, which waits
            self.synchronize()
        else:
            self._pace.backward_returns()

    def leave(self) -> None:
        self.finish()
        super().leave()

    def synchronize(self) -> None:
        self.finish()
        super().synchronize()

    # Steps

    def before_step(self) -> None:
        """Take the gradients away, so that the optimizer steps nothing.

        Gradients that are averages already stay, and the optimizer steps as usual.
        """
        self._left_steps -= 1
        if self._averaged or self._buckets is None:
            super().before_step()
        else:
            self._leave_under_way()
        self._gates.learn()
        if self._left_steps <= 0:
            self.finish()

    def _leave_under_way(self) -> None:
        require_averaged(self._optimizer, self._passes)
        self._require_unchanged()
        self._hand_over(all_of_them=True)
        groups = [_frozen(group) for group in param_groups(self._optimizer)]
        for under_way in self._under_way:
            self._updates.update(dict.fromkeys(under_way.bucket, _Update(under_way, groups)))
        self.take_gradients()
        self._begin()
        self._finish(self._updates.keys() - self._gates.announced)

    def take_gradients(self) -> None:
        """Set all gradients to None."""
        for parameter in self.state.parameters.values():
            parameter.grad = None

    def _begin(self) -> None:
        super()._begin()
        self._late = ()

    def _enter(self, parameters: Iterable[torch.Tensor]) -> None:
        """Apply the updates that a module's forward needs, or all of them if autograd is off."""
        self._late = ()
        if self._updates:
            self._finish(parameters if torch.is_grad_enabled() else list(self._updates))

    def finish(self) -> None:
        """Wait for all pending averages, and apply their updates."""
        self._finish(list(self._updates))

    def _finish(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            update = self._updates.get(parameter)
            if update is not None:
                for updated in update.under_way.bucket:
                    del self._updates[updated]
                with _alone(update.under_way.bucket):
                    self._apply(update)

    def _apply(self, update: _Update) -> None:
        self._deliver(update.under_way)
        bucket = update.under_way.bucket
        with self._as_it_was(update.groups):
            self.state.gradients.apply_momentum(
                self.state.name_of(parameter) for parameter in bucket
            )
        groups = _restricted(update.groups, bucket)
        if self.state.momentum is not None:
            for group in groups:
                group["momentum"] = 0.0
        stepper = self._kind.__new__(self._kind)
        stepper.__setstate__(
            {
                "defaults": self._optimizer.defaults,
                "state": self._optimizer.state,
                "param_groups": groups,
            }
        )
        stepper.step()

    @contextmanager
    def _as_it_was(self, groups: List[Dict[str, Any]]) -> Iterator[None]:
        """Return a context in which the optimizer has these parameter groups."""
        contents = vars(self._optimizer)
        current, contents["param_groups"] = contents["param_groups"], groups
        try:
            yield
        finally:
            contents["param_groups"] = current


def _frozen(group: Dict[str, Any]) -> Dict[str, Any]:
    """Copy a parameter group, with its current learning rate, which may be a tensor."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}


def _restricted(groups: List[Dict[str, Any]], bucket: Bucket) -> List[Dict[str, Any]]:
    """Return copies of parameter groups with only the parameters of a bucket."""
    restricted = [{**g, "params": [p for p in g["params"] if p in set(bucket)]} for g in groups]
    return [group for group in restricted if group["params"]]


@contextmanager
def _alone(bucket: Bucket) -> Iterator[None]:
    """Return a context without gradients of these parameters, autocast and inference mode."""
    gradients: List[Optional[torch.Tensor]] = [parameter.grad for parameter in bucket]
    device = bucket[0].device.type
    with torch.inference_mode(False), torch.autocast(device, enabled=False):
        for parameter in bucket:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in zip(bucket, gradients):
                parameter.grad = gradient

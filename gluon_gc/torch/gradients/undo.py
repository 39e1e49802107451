"""Undo: takes back the exchanges whose averages no optimizer has applied.

Backward exchanges gradients, so residuals and momentum contain a gradient before any optimizer
applies its average. If no optimizer does, the exchange of this parameter is taken back before the
next one: its coders return to their state from before the exchange, which they keep.

There is one record for each parameter whose average was not applied so far. A backward pass may
also add to such averages. It then continues their step: the gradients that it exchanges contain the
averages, so the first exchange is not taken back.
"""

from __future__ import annotations

import weakref
import zlib
from contextlib import contextmanager
from typing import (
    Any,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)

import torch
from torch.autograd import Variable
from torch.optim import Optimizer

from ...log import logger
from ..transport import gpu
from .optimizer_hooks import (
    Arguments,
    StepObserver,
    closure_of,
    param_groups,
    steps_any,
    untraced,
    weakly,
    with_closure,
)

_FIRST = 4096  # elements that `is_nonzero` reads before it reads all


class _Average:
    """An average that no optimizer has applied, as far as is known."""

    gradient: weakref.ref | None = None  # the gradient when backward returned
    version: int = 0  # of this gradient
    old: bool = False  # an optimizer has since stepped other parameters
    # Whether the gradient still had the average when backward last added to it. None: it has not.
    kept: bool | None = None
    zero: torch.Tensor | None = None  # whether it came as all zeros, if that was looked at
    # One for each step of an optimizer that may have applied the average. The result, which a GPU
    # computes, is whether the gradient was zeroed, and whether the step did not apply the average.
    unless: tuple[Callable[[], Sequence[bool]], ...] = ()
    versions: tuple[int, int] = (0, 0)  # of parameter and gradient, before the step under way

    def __init__(self, excluded: bool) -> None:
        self.excluded = excluded  # it is known that no optimizer of this worker will apply it

    def is_in(self, gradient: torch.Tensor) -> bool:
        known = self.gradient is not None and self.gradient() is gradient
        return known and gradient._version == self.version


class Undo(StepObserver):
    """Records for each parameter whether an optimizer has applied its last average.

    `take_back` takes back the exchange of the tensors with these names. Its second argument says
    whether they are all tensors of the last step. `in_use` is for sharded gradients: it returns the
    names among the given ones whose averages are still in the gradients of any worker.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        take_back: Callable[[list[str], bool], None],
        in_use: Callable[[list[str]], set[str]] | None = None,
    ) -> None:
        super().__init__()
        self._parameters, self._take_back = parameters, take_back
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        # Nothing says whether an average without elements was applied, and it leaves no trace.
        self._empty = {name for name, parameter in parameters.items() if not parameter.numel()}
        self._averages: dict[str, _Average] = {}
        self._last: set[str] = set()  # all exchanged names of the last step
        self.digest = 0  # a 32-bit checksum of all names taken back so far, equal on all workers
        self.computed: set[str] = set()  # gradients from backward. Whoever averages them takes them
        self.unclear: set[str] = set()  # zeros in these gradients may come from their averages
        self._warned = self._excludes = False
        self._knows_all = in_use is None
        self._in_use = in_use or (lambda names: {name for name in names if self.keeps(name)})
        self._task = [-1]  # the backward pass whose end is awaited, in a list that hooks share
        self._marked: dict[str, _Average] = {}  # that the step under way applies, as far as known
        self._closures = 0  # that are running
        self._shown: set[str] = set()  # averages that the step of the running closure may apply
        self._handles = self._hooks()

    # Exchanges

    def begin(self, expected: bool = False) -> set[str]:
        """Take back what no optimizer has applied, and return the names that are continued.

        `expected`: it is known why an optimizer has not applied them, so there is no warning.
        Raise a RuntimeError, and take nothing back, if it cannot be known whether the step of an
        optimizer that runs this closure will apply the averages of the last exchange.
        """
        self._settle()
        candidates = [name for name, average in self._averages.items() if not average.excluded]
        continued = self._in_use(candidates) if candidates else set()
        for name in continued:
            self._averages[name].kept = None
        dropped = [name for name in self._averages if name not in continued]
        unknown = [n for n in dropped if n in self._shown and not self._averages[n].excluded]
        if self._closures and unknown:
            raise RuntimeError(
                f"the gradient of parameter {unknown[0]} was averaged twice in a step of the "
                "optimizer with a closure, so it cannot be known which average the step applies: "
                "put the backward passes whose averages it does not apply into `with "
                "state.not_applied():`, and call zero_grad() before the step if it does not apply "
                "the gradients that are there"
            )
        if dropped:
            self._drop(dropped, expected)
        if not continued:
            self._last.clear()
        return continued

    def exchanged(self, names: Iterable[str], skipped: Collection[str] | None = None) -> None:
        """Record that these gradients are averages now. The names are the same on all workers.

        `skipped` is for averages that only other workers apply. They skip the step if it will not
        be empty.
        """
        averages = {name: _Average(self._excludes) for name in names if name not in self._empty}
        if skipped is not None:
            for average in averages.values():
                average.excluded, average.unless = True, (lambda: (False, bool(skipped)),)
        self._last.update(averages)
        self._averages.update(averages)
        if self._closures:
            self._shown.update(averages)
        for name in self._marked.keys() & averages.keys():
            del self._marked[name]

    def note_zeros(self, averages: Mapping[str, torch.Tensor], drawn: Collection[str]) -> None:
        """Record which averages come as zeros: their zeros do not say that they went.

        Averages that are `drawn` at random may. Others may if they are rounded. To look at all of
        them would take time, so these are the gradients that have been found as zeros before.
        """
        for name in averages.keys() & self._averages.keys() & self.unclear.union(drawn):
            self._averages[name].zero = ~is_nonzero(averages[name])

    def note_lost(self, names: Iterable[str]) -> None:
        """Record that these averages are not in the gradients, whatever backward has added since.

        Hooks did not see it, because backward ran while the gradients were exchanged.
        """
        for name in self._averages.keys() & set(names):
            self._averages[name].kept = False

    def waiting(self) -> tuple[list[str], bool]:
        """Return the names whose average is not applied, and whether they are the last step's all.

        A checkpoint must be without their exchange.
        """
        self._settle()
        return list(self._averages), self._is_whole(self._averages)

    def _is_whole(self, names: Collection[str]) -> bool:
        return bool(self._last) and self._last.issubset(names)

    def clear(self) -> None:
        """Keep all exchanges: the script has applied their averages, or has loaded a state."""
        self._averages.clear()
        self._last.clear()

    @contextmanager
    def not_applied(self) -> Iterator[None]:
        """Return a context whose exchanges leave no trace in residuals and momentum."""
        before, self._excludes = self._excludes, True
        try:
            yield
        finally:
            self._excludes = before

    def leave(self) -> None:
        super().leave()
        for handle in self._handles:
            handle.remove()

    def _drop(self, names: list[str], expected: bool) -> None:
        said = expected or any(self._averages[name].excluded for name in names)
        certain = [n for n in names if n not in self.unclear or self._averages[n].zero is not None]
        if certain and not said and not self._warned:
            self._warned = True
            logger.warning(
                "the gradients of %s and other parameters were exchanged, but no optimizer has "
                "applied them, so the exchange is taken back. To save the traffic, freeze such "
                "parameters during that backward (requires_grad_(False)), or do not synchronize "
                "their gradients (no_sync, set_requires_gradient_sync). If the script applies "
                "averages without an optimizer, it must call state.applied() afterwards",
                certain[0],
            )
        for name in names:
            del self._averages[name]
        self.digest = zlib.crc32("\n".join(sorted(names)).encode(), self.digest)
        self._take_back(names, self._is_whole(names))

    # Gradients

    def _hooks(self) -> list[Any]:
        """Register a hook before and one after backward adds to a gradient. They must be fast."""
        touch, follow = weakly(self._touch), weakly(self._follow)
        current_task = torch._C._current_graph_task_id
        averages, computed, task = self._averages, self.computed, self._task

        def hooks_of(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
            @untraced
            def before(gradient: torch.Tensor) -> None:  # torch.autograd.grad calls it, too
                if name in averages:
                    touch(name)

            @untraced
            def after(parameter: torch.Tensor) -> None:
                computed.add(name)
                if task[0] != current_task():
                    follow()

            return before, after

        handles = []
        for name, parameter in self._parameters.items():
            before, after = hooks_of(name)
            handles.append(parameter.register_hook(before))
            if self._knows_all:
                handles.append(parameter.register_post_accumulate_grad_hook(after))
        return handles

    def _touch(self, name: str) -> None:
        average = self._averages[name]
        if average.kept is not False and not average.excluded:
            average.kept = self._has_average(name)

    def _follow(self) -> None:
        """Call `delivered` at the end of this backward pass."""
        self._task[0] = torch._C._current_graph_task_id()
        # DistributedDataParallel delivers averages in a callback, which comes in between.
        queue = Variable._execution_engine.queue_callback
        queue(lambda: queue(self.delivered))

    def delivered(self) -> None:
        """Record the versions of the gradients that are averages."""
        for name, average in self._averages.items():
            gradient = self._parameters[name].grad
            if gradient is not None:
                average.gradient, average.version = weakref.ref(gradient), gradient._version

    def keeps(self, name: str) -> bool:
        """Return whether a gradient has its average, on this worker, which nobody set to zero."""
        kept = self._averages[name].kept
        return self._has_average(name) if kept is None else kept

    def was_zero(self, name: str) -> bool:
        """Return whether an average came as zeros on this worker, as far as is known."""
        return bool(self._averages[name].zero)

    def _has_average(self, name: str) -> bool:
        gradient = self._parameters[name].grad
        if gradient is None or not self._knows_all:
            return gradient is not None
        return not self._is_zeroed(name, self._averages[name])

    def _is_zeroed(self, name: str, average: _Average) -> bool:
        """Return whether a gradient with an average is all zeros now, and was not before."""
        if average.zero or is_nonzero(self._parameters[name].grad):
            return False
        self.unclear.add(name)
        return True

    # Steps of optimizers

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments:
        """Prepare to see what a step applies. With a closure, this is known after the step."""
        if not steps_any(optimizer, self._names):
            return None
        closure = closure_of(args, kwargs)
        self._marked.clear()
        if closure is None:
            return None
        self._shown = {
            name
            for name, average in self._averages.items()
            if not average.old and self._has_average(name)
        }
        is_first = True

        def counted() -> Any:
            nonlocal is_first
            self._closures += 1
            try:
                return closure()
            except BaseException:
                if is_first:  # the step has applied nothing yet
                    for name in self._shown & self._averages.keys():
                        self._averages[name].excluded = True
                raise
            finally:
                self._closures -= 1
                is_first = False

        return with_closure(args, kwargs, counted)

    def before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if closure_of(args, kwargs) is None:
            self._mark(optimizer)

    def _mark(self, optimizer: Optimizer) -> None:
        """Record that a step of an optimizer applies its averages, if nothing speaks against it."""
        overflow = getattr(optimizer, "found_inf", None)  # GradScaler passes it to fused optimizers
        changed: dict[str, torch.Tensor] = {}
        for group in param_groups(optimizer) if self._averages else ():
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                average = self._averages.get(name)
                if average is None or average.excluded or average.kept is False:
                    continue
                gradient = parameter.grad
                if gradient is None or name in self._marked:
                    continue
                if overflow is None and (average.is_in(gradient) or not self._knows_all):
                    del self._averages[name]
                else:
                    changed[name] = gradient
                average.versions = parameter._version, gradient._version
                self._marked[name] = average
        if changed:
            for name, unless in self._unless(changed, overflow).items():
                self._averages[name].unless += (unless,)
            if not next(iter(changed.values())).is_cuda:
                self._settle()

    def after_step(self, optimizer: Optimizer) -> None:
        """Find averages that the step has not applied."""
        self._mark(optimizer)
        for name, average in self._marked.items():
            parameter, (version, _) = self._parameters[name], average.versions
            if parameter._version == version and name not in self._averages:
                if self._was_reset(name, average):
                    self._averages[name] = average
        for average in self._averages.values():
            average.old = True
        self._marked.clear()

    def _was_reset(self, name: str, average: _Average) -> bool:
        """Return whether a step that has not updated a parameter has reset its gradient."""
        gradient, (_, version) = self._parameters[name].grad, average.versions
        if gradient is None or gradient._version == version or not self._knows_all:
            return gradient is None
        return self._is_zeroed(name, average)

    def _unless(
        self, gradients: dict[str, torch.Tensor], overflow: torch.Tensor | None
    ) -> dict[str, Callable[[], Sequence[bool]]]:
        """Return whether gradients that the script has changed are zero, and if so or overflow."""
        tensors = list(gradients.values())
        if tensors[0].is_cuda and self._knows_all:
            zeros = torch.stack(torch._foreach_norm(tensors, torch.inf)) == 0
        elif self._knows_all:
            zeros = torch.tensor([not is_nonzero(tensor) for tensor in tensors], device="cpu")
        else:
            zeros = torch.zeros(len(tensors), dtype=torch.bool, device=tensors[0].device)
        for number, name in enumerate(gradients):
            zero = self._averages[name].zero
            if zero is not None:
                gpu.record([zero])
                zeros[number] &= ~zero.to(zeros.device)
        lost = zeros if overflow is None else zeros | (overflow.to(zeros.device) != 0)
        values = gpu.copied_later(torch.stack([zeros, lost]))
        return {name: lambda i=i: values()[:, i].tolist() for i, name in enumerate(gradients)}

    def _settle(self) -> None:
        """Find out whether steps have applied the averages that they may have applied."""
        for name, average in list(self._averages.items()):
            found = [unless() for unless in average.unless]
            if any(zeroed for zeroed, _ in found):
                self.unclear.add(name)
            if not all(lost for _, lost in found):
                del self._averages[name]
            average.unless = ()


def is_nonzero(gradient: torch.Tensor | None) -> torch.Tensor:
    """Return whether a gradient has an element that is not zero, shape (). None has none."""
    if gradient is None:
        return torch.tensor(False, device="cpu")
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    if not values.is_cuda and values.is_contiguous():
        first = values.view(-1)[:_FIRST].any()  # usually true, and reading all takes time
        if first or values.numel() <= _FIRST:
            return first
    return values.any()

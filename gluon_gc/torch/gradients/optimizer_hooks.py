"""Hooks into the steps of optimizers."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from functools import lru_cache, wraps
from types import MethodType
from typing import (
    Any,
    Callable,
    Collection,
    Container,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Arguments = Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]

_WRAPPERS = {"AcceleratedOptimizer", "LightningOptimizer"}  # of Accelerate and of Lightning
_CALLED_LAST = "gluon_gc"  # a key among the numbers of an optimizer's hooks
_UNSCALES = "_step_supports_amp_scaling"  # GradScaler reads this attribute of an optimizer


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that Accelerate or Lightning has wrapped, or the argument itself.

    A wrapper has the parameter groups of its optimizer, but not its hooks. None is returned as it
    is. Anything else that is no Optimizer is a TypeError.
    """
    while any(kind.__name__ in _WRAPPERS for kind in type(optimizer).__mro__):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, (Optimizer, type(None))):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}: if it "
            "wraps an optimizer, pass that one"
        )
    return optimizer


def param_groups(optimizer: Optimizer) -> list[dict]:
    """Return an optimizer's parameter groups without the side effects of reading its attribute."""
    contents = vars(optimizer)  # without it, the attribute is a property of a class like Lookahead
    return contents["param_groups"] if "param_groups" in contents else optimizer.param_groups


@contextmanager
def without_gradients(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Return a context in which these parameters have no gradients."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient


def stepped(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    """Return the parameters of an optimizer that are not frozen."""
    return [p for group in param_groups(optimizer) for p in group["params"] if p.requires_grad]


def require_all(optimizer: Optimizer, known: Collection[torch.Tensor]) -> None:
    """Raise a ValueError if a parameter that is not frozen is not in `known`."""
    missing = [tuple(parameter.shape) for parameter in stepped(optimizer) if parameter not in known]
    if missing:
        raise ValueError(
            f"named_parameters must have all parameters of the optimizer, but parameters of shapes "
            f"{missing} are missing"
        )


def require_averaged(
    optimizer: Optimizer, known: Collection[torch.Tensor], made: str = "DistributedOptimizer"
) -> None:
    """Raise a RuntimeError if a parameter with a gradient is not in `known`."""
    for number, group in enumerate(param_groups(optimizer)):
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in known:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} in the optimizer's group "
                    f"{number} is not averaged: it was added, or unfrozen, after "
                    f"{made} was made"
                )


# Parameters are found by their id, because a tensor's hash is a function in Python.


def steps_any(optimizer: Optimizer, ids: Container[int]) -> bool:
    """Return whether an optimizer has any parameter with one of these ids."""
    return any(id(p) in ids for group in param_groups(optimizer) for p in group["params"])


def contained(optimizer: Optimizer) -> list[Optimizer]:
    """Return an optimizer, the optimizers in its attributes, those in theirs, and so on."""
    found = [optimizer]
    for each in found:
        values = vars(each).values()
        found += [v for v in values if isinstance(v, Optimizer) and v not in found]
    return found


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return the closure in the arguments of a hook before a step, if there is one."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def with_closure(args: Sequence[Any], kwargs: Mapping[str, Any], closure: Any) -> Arguments:
    """Return these arguments with another closure."""
    if "closure" in kwargs:
        return tuple(args), {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), dict(kwargs)


# A script may compile a whole step, but torch.compile cannot trace hooks.


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that calls a bound method while its object exists; else it returns None.

    Parameters keep their hooks in C++, where Python's garbage collector does not find a cycle.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = reference()
        return None if found is None else found(*args)

    return torch.compiler.disable(call)


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile from tracing a hook that backward calls for each parameter.

    `torch.compiler.disable` takes as long as such a hook does. Functions that it calls may be
    traced.
    """
    from torch._dynamo.eval_frame import skip_code  # takes seconds

    skip_code(function.__code__)
    return function


class StepObserver:
    """Sees the steps of all optimizers, from its creation until `leave`, while it exists."""

    def __init__(self) -> None:
        _install()
        self._number = next(_numbers)
        _observers[self._number] = self

    def leave(self) -> None:
        """See no more steps."""
        _observers.pop(self._number, None)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments:
        """Called before a step. The result, if not None, replaces its arguments."""

    def before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called after all other hooks before a step, so it sees the gradients that are used."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Called after a step that has raised no error."""


_numbers = itertools.count()
_observers: weakref.WeakValueDictionary[int, StepObserver] = weakref.WeakValueDictionary()
"""In the order of their creation."""


@lru_cache(maxsize=None)  # once
def _install() -> None:
    """Let the steps of all optimizers call `_observers`, in two hooks for all of them."""
    before_update = torch.compiler.disable(_before_update)

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments:
        for observer in list(_observers.values()):
            args, kwargs = observer.before_step(optimizer, args, kwargs) or (args, kwargs)
        own_hooks = optimizer._optimizer_step_pre_hooks  # they are called after this hook
        own_hooks.pop(_CALLED_LAST, None)
        own_hooks[_CALLED_LAST] = before_update
        return args, kwargs

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        optimizer._optimizer_step_pre_hooks.pop(_CALLED_LAST, None)
        for observer in list(_observers.values()):
            observer.after_step(optimizer)

    register_optimizer_step_pre_hook(torch.compiler.disable(before_step))
    register_optimizer_step_post_hook(torch.compiler.disable(after_step))


def _before_update(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for observer in list(_observers.values()):
        observer.before_update(optimizer, args, kwargs)


def let_step_call_hooks(optimizer: Optimizer) -> None:
    """Do for one optimizer what `Optimizer.__init__` does for its class, if nobody has done it.

    Some optimizers, such as Lookahead, do not call `Optimizer.__init__`, so PyTorch calls no hooks
    in their steps, also not those for all optimizers.
    """
    contents = vars(optimizer)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        contents.setdefault(hooks, OrderedDict())
    step = optimizer.step  # of the class, or a scheduler's wrapper of it
    if getattr(type(optimizer).step, "hooked", False) or getattr(step, "hooked", False):
        return

    @wraps(step)
    def own_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    hooked = Optimizer.profile_hook_step(own_step)
    hooked.hooked = True
    contents["step"] = MethodType(hooked, optimizer)  # a scheduler needs a method


def around_update(
    optimizer: Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Call `before` when an optimizer is about to use the gradients, and `after` after its step.

    With a closure, `before` is called after each call of the closure. SAM and Lookahead have base
    optimizers with the same parameter groups. A script may step such a base optimizer itself, so
    its steps count too, except within a step of the optimizer.

    GradScaler lets fused optimizers unscale gradients and skip steps themselves. This optimizer no
    longer does so: `before` sees gradients that are finite and unscaled.

    The result undoes this.
    """
    stepping: list[Optimizer] = []  # at most the outermost one

    @torch.compiler.disable
    def begins(inner: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if stepping not in ([], [inner]):
            return None
        stepping[:] = [inner]
        closure = closure_of(args, kwargs)
        if closure is None:
            before()
            return None

        def closure_and_before() -> Any:
            loss = closure()
            before()
            return loss

        return with_closure(args, kwargs, closure_and_before)

    @torch.compiler.disable
    def ends(inner: Optimizer, args: Any, kwargs: Any) -> None:
        if stepping == [inner]:
            stepping.clear()
            after()

    groups = set(map(id, param_groups(optimizer)))
    optimizers = [
        each
        for each in contained(optimizer)
        if each is optimizer or groups.intersection(map(id, param_groups(each)))
    ]
    handles = []
    for each in optimizers:
        let_step_call_hooks(each)
        handles += [each.register_step_pre_hook(begins), each.register_step_post_hook(ends)]
    unscaling = [vars(each) for each in optimizers if vars(each).get(_UNSCALES)]
    for contents in unscaling:
        contents[_UNSCALES] = False

    def undo() -> None:
        for handle in handles:
            handle.remove()
        for contents in unscaling:
            contents[_UNSCALES] = True

    return undo

"""Hooks into the step of an optimizer."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from functools import partial, wraps
from types import MethodType
from typing import (
    Any,
    Callable,
    Collection,
    Container,
    Dict,
    Iterable,
    List,
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
from torch.utils.hooks import RemovableHandle

Arguments = Optional[Tuple[Tuple[Any, ...], Dict[str, Any]]]
Hook = Callable[[Optimizer, Any, Any], Arguments]

_WRAPPERS = {"AcceleratedOptimizer", "LightningOptimizer"}  # of Accelerate and of Lightning
_CALLS_LAST = "gluon_gc"  # a key among the numbers of an optimizer's hooks
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


def param_groups(optimizer: Optimizer) -> List[dict]:
    """Return an optimizer's parameter groups without the side effects of reading its attribute."""
    contents = vars(optimizer)  # without it, the attribute is a property of a class like Lookahead
    return contents["param_groups"] if "param_groups" in contents else optimizer.param_groups


def require_averaged(optimizer: Optimizer, known: Collection[torch.Tensor]) -> None:
    """Raise a RuntimeError if a parameter with a gradient is not in `known`."""
    for number, group in enumerate(param_groups(optimizer)):
        for parameter in group["params"]:
            if parameter.grad is not None and parameter not in known:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} in the optimizer's group "
                    f"{number} is not averaged: it was added, or unfrozen, after "
                    "DistributedOptimizer was made"
                )


def steps_any(optimizer: Optimizer, parameters: Container[torch.Tensor]) -> bool:
    """Return whether an optimizer has any of these parameters, in a set or as keys of a dict."""
    return any(p in parameters for group in param_groups(optimizer) for p in group["params"])


def contained(optimizer: Optimizer) -> List[Optimizer]:
    """Return an optimizer, the optimizers in its attributes, those in theirs, and so on."""
    found = [optimizer]
    for each in found:
        values = vars(each).values()
        found += [v for v in values if isinstance(v, Optimizer) and v not in found]
    return found


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[Callable[[], Any]]:
    """Return the closure in the arguments of a hook before a step, if there is one."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method while its object exists; else it returns None.

    Parameters keep their hooks in C++, where Python's garbage collector does not find a cycle.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = reference()
        return None if found is None else found(*args)

    return call


def with_closure(args: Sequence[Any], kwargs: Mapping[str, Any], closure: Any) -> Arguments:
    """Return these arguments with another closure."""
    if "closure" in kwargs:
        return tuple(args), {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), dict(kwargs)


def watch_steps(
    before: Optional[Hook] = None,
    after: Optional[Hook] = None,
    last: Optional[Hook] = None,
    optimizer: Optional[Optimizer] = None,
) -> Callable[[], None]:
    """Call `before` and `after` around each step of an optimizer, or of all optimizers.

    Some optimizers, such as Lookahead, do not call `Optimizer.__init__`, so PyTorch calls no hooks
    in their steps. If such an optimizer is given, its `step` calls hooks from now on, also those
    that watch all optimizers.

    Parameters
    ----------
    before, after : callable, optional
        Hooks for `Optimizer.register_step_pre_hook` and `register_step_post_hook`. The hook `after`
        is not called if the step raises an error.
    last : callable, optional
        Like `before`, for all optimizers. It is called after all hooks of the optimizer itself, so
        it sees the gradients that the step applies.
    optimizer : Optimizer, optional
        Default: all optimizers.

    Returns
    -------
    callable
        It removes the hooks.
    """
    while _dropped:
        _dropped.pop()()
    register_before, register_after = (
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    )
    if optimizer is not None:
        _let_step_call_hooks(optimizer)
        register_before = optimizer.register_step_pre_hook
        register_after = optimizer.register_step_post_hook
    pairs = [(register_before, before), (register_after, after)]
    if last is not None:
        pairs += [(register_before, _append_last), (register_after, _pop_last)]
        pairs += [(_register_last, last)]
    return partial(_remove, [register(hook) for register, hook in pairs if hook is not None])


_last_hooks: Dict[int, Hook] = OrderedDict()


def _register_last(hook: Hook) -> RemovableHandle:
    handle = RemovableHandle(_last_hooks)
    _last_hooks[handle.id] = hook
    return handle


def _append_last(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Put `_call_last` behind the hooks of an optimizer, which are called after this hook."""
    hooks = optimizer._optimizer_step_pre_hooks
    hooks.pop(_CALLS_LAST, None)
    hooks[_CALLS_LAST] = _call_last


def _pop_last(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    optimizer._optimizer_step_pre_hooks.pop(_CALLS_LAST, None)


def _call_last(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for hook in tuple(_last_hooks.values()):
        hook(optimizer, args, kwargs)


_dropped: List[Callable[[], None]] = []
"""Functions that remove hooks. A step of an optimizer must not, because it iterates over hooks."""


def until_collected(owner: Any, remove: Callable[[], None]) -> Callable[[], None]:
    """Remove hooks some time after their owner is garbage; the result removes them at once."""
    end = weakref.finalize(owner, _dropped.append, remove)

    def remove_now() -> None:
        if end.detach():
            remove()

    return remove_now


def watch_while_alive(owner: Any, **methods: Hook) -> Callable[[], None]:
    """Call methods of an object around the steps of all optimizers, while the object exists.

    `methods` are arguments of `watch_steps`. The result removes the hooks.
    """
    # A script may compile a whole step, but torch.compile cannot trace the hooks.
    hooks = {name: torch.compiler.disable(weakly(method)) for name, method in methods.items()}
    return until_collected(owner, watch_steps(**hooks))


def remove_later(remove: Callable[[], None]) -> None:
    """Remove hooks some time after the step of an optimizer that is under way."""
    _dropped.append(remove)


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _let_step_call_hooks(optimizer: Optimizer) -> None:
    """Do for one optimizer what `Optimizer.__init__` does for its class, if nobody has done it."""
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

    Returns
    -------
    callable
        It undoes this.
    """
    stepping: List[Optimizer] = []  # at most the outermost one

    def begins(inner: Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Arguments:
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

    def ends(inner: Optimizer, args: Any, kwargs: Any) -> None:
        if stepping == [inner]:
            stepping.clear()
            after()

    # A script may compile a whole step, but torch.compile cannot trace the hooks.
    hooks = tuple(map(torch.compiler.disable, (begins, ends)))
    groups = set(map(id, param_groups(optimizer)))
    optimizers = [
        each
        for each in contained(optimizer)
        if each is optimizer or groups.intersection(map(id, param_groups(each)))
    ]
    removals = [watch_steps(*hooks, optimizer=each) for each in optimizers]
    unscaling = [vars(each) for each in optimizers if vars(each).get(_UNSCALES)]
    for contents in unscaling:
        contents[_UNSCALES] = False

    def undo() -> None:
        for remove in removals:
            remove()
        for contents in unscaling:
            contents[_UNSCALES] = True

    return undo

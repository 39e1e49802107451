"""The parameters of a model, their compression, and the settings of their optimizer."""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

import torch
from torch.optim import Optimizer

from ...compression import CompressionParams, parse, warn_of_ignored, warn_of_plain_adam
from ...compression.momentum import has_nesterov
from ...exchange.agreement import Facts
from ...exchange.plan import params_for_dimensions
from ...options import first_match, is_whole, require_matches
from ..transport import gpu
from .optimizer_hooks import param_groups

_WRAPPERS = ("module.", "_orig_mod.")  # name prefixes of DistributedDataParallel, torch.compile


class Named(NamedTuple):
    trained: dict[str, torch.nn.Parameter]  # they need gradients
    frozen: dict[str, torch.nn.Parameter]
    aliases: dict[str, str]  # further names of tied parameters, and their names in the other dicts


def pairs(named_parameters: Iterable[Any]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield named_parameters, or raise TypeError if one is no pair of a name and a tensor."""
    for pair in named_parameters:
        values = pair if isinstance(pair, (tuple, list)) else (pair,)
        is_pair = len(values) == 2 and isinstance(values[0], str)
        if not is_pair or not isinstance(values[1], torch.Tensor):
            found = ", ".join(type(value).__name__ for value in values)
            raise TypeError(
                "named_parameters must be model.named_parameters(), or other pairs of name and "
                f"parameter, got {found}"
            )
        yield values


def named(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Named:
    """Return parameters by name. Names lose the prefixes of wrappers."""
    parameters: dict[str, torch.nn.Parameter] = {}
    frozen: dict[str, torch.nn.Parameter] = {}
    aliases: dict[str, str] = {}
    names: dict[torch.nn.Parameter, str] = {}
    for name, parameter in pairs(named_parameters):
        while name.startswith(_WRAPPERS):
            name = name.partition(".")[2]
        if name in parameters or name in frozen or name in aliases:
            raise ValueError(f"named_parameters has the name '{name}' twice")
        if parameter in names:
            aliases[name] = names[parameter]
            continue
        names[parameter] = name
        (parameters if parameter.requires_grad else frozen)[name] = parameter
    if not parameters:
        raise ValueError("named_parameters has no parameter that needs a gradient")
    return Named(parameters, frozen, aliases)


class Chosen(NamedTuple):
    """The compression of each parameter, and whether its momentum is Nesterov momentum."""

    params: dict[str, CompressionParams]
    nesterov: dict[str, bool]


def chosen_params(
    parameters: Mapping[str, torch.nn.Parameter],
    compression_params: Mapping[str, Any] | None,
    overrides: Mapping[str, Mapping[str, Any] | None] | None,
    mu: float | None = None,
    nesterov: bool = False,
    optimizer: Optimizer | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> Chosen:
    """Return the compression of each parameter, given the optimizer's momentum.

    An override may have any name of a tied parameter.
    """
    overrides = checked_overrides(overrides)
    kind = "" if optimizer is None else type(optimizer).__name__
    parsed = partial(parse, mu=mu, nesterov=nesterov, optimizer=kind)
    default = parsed(compression_params)
    own = {pattern: parsed(params) for pattern, params in overrides.items()}
    warn_of_ignored(compression_params, *overrides.values())
    warn_of_plain_adam(kind, (default, *own.values()))
    require_matches(own, [*parameters, *aliases], "overrides")
    names: dict[str, list[str]] = {name: [name] for name in parameters}
    for alias, name in aliases.items():
        if name in names:
            names[name].append(alias)
    chosen = Chosen({}, {})
    for name, parameter in parameters.items():
        matches = (first_match(each, own, default) for each in names[name])
        params = next((match for match in matches if match is not default), default)
        chosen.nesterov[name] = has_nesterov(params, default, nesterov)
        params = params_for_dimensions(params, parameter.ndim)
        chosen.params[name] = params if gpu.in_host_memory(parameter.device) else params.on_gpu
    return chosen


def checked_overrides(overrides: Any) -> Mapping[str, Mapping[str, Any] | None]:
    """Return overrides, or raise TypeError unless they are a mapping or None."""
    if not isinstance(overrides or {}, Mapping):
        raise TypeError(
            "overrides must be a dict with compression_params, or None, for patterns such as "
            f"'*.bias', got {overrides!r}"
        )
    return overrides or {}


def checked_passes(passes: Any) -> int:
    """Return backward_passes_per_step as an int, or raise ValueError if it is wrong."""
    if not is_whole(passes) or passes < 1:
        raise ValueError(f"backward_passes_per_step must be a whole number > 0, got {passes!r}")
    return int(passes)


def require_frozen(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raise a RuntimeError if a parameter that needed no gradient needs one now."""
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            raise RuntimeError(
                f"parameter {name} needed no gradient when its CompressionState was made, so "
                "its gradient is not averaged: make the state after the parameter is unfrozen"
            )


def require_no_momentum(*several: Mapping[str, Any] | None) -> None:
    """Raise ValueError if compression_params ask for the momentum of an optimizer that is None."""
    if any(isinstance(params, Mapping) and params.get("momentum") for params in several):
        raise ValueError(
            "compression_params['momentum'] needs the optimizer: pass it to CompressionState("
            "named_parameters, compression_params, optimizer)"
        )


def require_optimizer(several: Iterable[CompressionParams], optimizer: Optimizer | None) -> None:
    """Raise ValueError if error feedback needs learning rates, but the optimizer has none."""
    if optimizer is None:
        for params in several:
            params.require_no_optimizer()
    elif any(group.get("lr", 0.0) is None for group in param_groups(optimizer)):
        for params in several:
            if params.follows_rates:
                raise ValueError(
                    f"compression_params['ef'] '{params.ef}' follows the learning rate, but a "
                    "group of the optimizer has lr=None: use 'vanilla', or set lr"
                )


def facts_of(optimizer: Optimizer | None, mu: float | None) -> Facts:
    """Return facts about an optimizer that must be the same on all workers.

    `mu` is the momentum that is applied instead of the optimizer's.
    """
    if optimizer is None:
        return []
    kind = type(optimizer).__name__
    facts = [("", {"optimizer": kind, "momentum that compression applies": mu})]
    for number, group in enumerate(param_groups(optimizer)):
        values = {key: _plain(value) for key, value in group.items() if key != "params"}
        shapes = [list(parameter.shape) for parameter in group["params"]]
        facts.append((f"the optimizer's group {number}", {**values, "shapes": shapes}))
    return facts


def learning_rates(optimizer: Optimizer | None) -> list[float]:
    """Return the learning rates of an optimizer's parameter groups, NaN for None."""
    groups = param_groups(optimizer) if optimizer is not None else []
    rates = [group["lr"] for group in groups if "lr" in group]
    return [math.nan if rate is None else float(rate) for rate in rates]


def _plain(value: Any) -> Any:
    """Return an optimizer's setting as a JSON value; for unknown types, the type's name."""
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= 1 else list(value.shape)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__

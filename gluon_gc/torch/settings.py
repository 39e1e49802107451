"""Which parameters there are, and how each is compressed."""

from __future__ import annotations

import fnmatch
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch.optim import Optimizer

from ..agreement import Facts
from ..compression import CompressionParams, parse, warn_of_ignored
from ..compression.momentum import has_nesterov
from ..options import nearest
from . import gpu
from .optimizer_hooks import param_groups

_WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile add to names


def named(
    named_parameters: Iterable[Tuple[str, torch.nn.Parameter]],
) -> Tuple[Dict[str, torch.nn.Parameter], Dict[str, torch.nn.Parameter]]:
    """Those that need gradients, by names without those of wrappers, and those that do not."""
    parameters: Dict[str, torch.nn.Parameter] = {}
    frozen: Dict[str, torch.nn.Parameter] = {}
    for name, parameter in named_parameters:
        if not isinstance(parameter, torch.Tensor):
            raise TypeError(f"named_parameters must be pairs of name and parameter, got {name!r}")
        while name.startswith(_WRAPPERS):
            name = name.partition(".")[2]
        if name in parameters or name in frozen:
            raise ValueError(f"named_parameters has the name '{name}' twice")
        (parameters if parameter.requires_grad else frozen)[name] = parameter
    if not parameters:
        raise ValueError("named_parameters has none that needs a gradient")
    return parameters, frozen


class Chosen(NamedTuple):
    """By parameter, how it is compressed, and whether its momentum is Nesterov's if it has any."""

    params: Dict[str, CompressionParams]
    nesterov: Dict[str, bool]


def chosen_params(
    parameters: Mapping[str, torch.nn.Parameter],
    compression_params: Optional[Mapping[str, Any]],
    overrides: Optional[Mapping[str, Optional[Mapping[str, Any]]]],
    mu: Optional[float] = None,
    nesterov: bool = False,
    optimizer: Optional[Optimizer] = None,
) -> Chosen:
    """How each parameter is compressed, given the optimizer's momentum.

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong compression_params, or an override of what there is not.
    """
    overrides = overrides or {}
    of_optimizer = mu, nesterov, "" if optimizer is None else type(optimizer).__name__
    chosen = parse(compression_params, *of_optimizer)
    own = {pattern: parse(params, *of_optimizer) for pattern, params in overrides.items()}
    warn_of_ignored(compression_params, *overrides.values())
    for pattern in own:
        if not fnmatch.filter(parameters, pattern):
            raise ValueError(
                f"overrides has {pattern!r}, but there is no such parameter; did you mean "
                f"'{nearest(pattern, parameters)}'?"
            )
    result = Chosen({}, {})
    for name, parameter in parameters.items():
        matching = [pattern for pattern in own if fnmatch.fnmatchcase(name, pattern)]
        params = own[matching[0]] if matching else chosen
        result.nesterov[name] = has_nesterov(params, chosen, nesterov)
        accumulates = params.compressor is not None and params.compressor.traits.accumulates
        if accumulates and parameter.ndim == 1:  # as in the reference implementation of DGC
            params = CompressionParams(fp16=params.fp16)
        result.params[name] = params if gpu.in_host_memory(parameter.device) else params.on_gpu
    return result


def require_optimizer(several: Iterable[CompressionParams], optimizer: Optional[Optimizer]) -> None:
    """Raise ValueError if error feedback needs the optimizer, and there is none."""
    feedback = {params.ef for params in several} & {"corrected", "sparse"}
    if feedback and optimizer is None:
        raise ValueError(
            f"compression_params['ef'] '{feedback.pop()}' needs the optimizer, whose learning rate "
            "it follows"
        )


def facts_of(optimizer: Optional[Optimizer], mu: Optional[float]) -> Facts:
    """What workers must have in common to do the same with averages.

    `mu` is the momentum that is applied instead of the optimizer's, which is 0 then.
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


def learning_rates(optimizer: Optional[Optimizer]) -> List[float]:
    """Those of an optimizer's parameter groups."""
    groups = param_groups(optimizer) if optimizer is not None else []
    return [float(group["lr"]) for group in groups if "lr" in group]


def _plain(value: Any) -> Any:
    """A setting of an optimizer as JSON has it; of others than numbers and words, the kind."""
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= 1 else list(value.shape)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__

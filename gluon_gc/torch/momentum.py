"""Momentum that gluon_gc applies instead of the optimizer.

Momentum is applied to the gradient before compression, and the optimizer's own momentum is 0. Two
parts remain for the optimizer's step: the momentum of gradients that are sent uncompressed, and the
weight decay's part of the momentum.

References
----------
Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback",
NeurIPS 2019.
"""

from __future__ import annotations

import weakref
from typing import Any, Collection, Dict, Iterable, Mapping, Optional, Tuple

import torch
from torch.optim import Optimizer

from ..compression.momentum import require_linear
from ..log import logger
from .optimizer_hooks import param_groups

_in_use: weakref.WeakSet[Momentum] = weakref.WeakSet()


def momentum_of(optimizer: Optional[Optimizer]) -> Tuple[Optional[float], bool]:
    """Return the momentum of the first parameter group that has one, and whether it is Nesterov's.

    Without such a group: None and False.
    """
    taker = _taker_of(optimizer)
    if taker is not None:
        return taker.mu, taker.given["nesterov"]
    for group in optimizer.param_groups if optimizer is not None else []:
        if group.get("momentum"):
            return float(group["momentum"]), bool(group.get("nesterov"))
    return None, False


def _taker_of(optimizer: Optional[Optimizer]) -> Optional[Momentum]:
    """Return the object that applies the momentum of an optimizer now."""
    return next((momentum for momentum in _in_use if momentum.optimizer is optimizer), None)


def _require_same(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError if parameter groups differ in momentum or nesterov."""
    kinds = sorted({(group["momentum"], group["nesterov"]) for group in groups})
    if len(kinds) > 1:
        raise ValueError(
            "the optimizer's parameter groups must have the same momentum and nesterov, got "
            f"{kinds}"
        )


class Momentum:
    """Applies momentum mu instead of an optimizer, and sets the optimizer's own momentum to 0.

    The optimizer's `state_dict` still contains the momentum that the user has set.

    Parameters
    ----------
    optimizer : Optimizer
    mu : float
    has_nesterov : mapping of str to bool
        For each parameter name, whether it has Nesterov momentum or classic momentum.

    Raises
    ------
    ValueError
        The optimizer's update is not linear in the gradient, its dampening is not 0, it maximizes,
        its parameter groups have different momentum, or another object applies its momentum.
    """

    def __init__(self, optimizer: Optimizer, mu: float, has_nesterov: Mapping[str, bool]) -> None:
        require_linear(optimizer, [torch.optim.SGD])
        if _taker_of(optimizer) is not None:
            raise ValueError(
                "an earlier CompressionState applies the momentum of this optimizer: call its "
                "close() first"
            )
        _require_same(optimizer.param_groups)
        for group in optimizer.param_groups:
            for key in ("dampening", "maximize"):
                if group.get(key):
                    raise ValueError(f"momentum is applied without {key}, got {group[key]}")
        self.mu, self.optimizer, self._has_nesterov = mu, optimizer, has_nesterov
        self.given = {"momentum": mu, "nesterov": bool(optimizer.param_groups[0].get("nesterov"))}
        self.state: Dict[str, Dict[str, torch.Tensor]] = {"gradient": {}, "weight_decay": {}}
        self._take()
        _in_use.add(self)
        self._handles = (
            optimizer.register_state_dict_post_hook(self._saved),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        )

    def _take(self) -> None:
        for group in param_groups(self.optimizer):
            group.update(momentum=0.0, nesterov=False)

    def give_back(self) -> None:
        """Let the optimizer apply its own momentum again."""
        _in_use.discard(self)
        for handle in self._handles:
            handle.remove()
        for group in param_groups(self.optimizer):
            group.update(self.given)

    def _saved(self, optimizer: Optimizer, state_dict: Dict[str, Any]) -> None:
        """Put the user's momentum into the optimizer's state_dict."""
        for group in state_dict["param_groups"]:
            group.update(self.given)

    def _loaded(self, optimizer: Optimizer) -> None:
        others = {group["momentum"] for group in param_groups(optimizer)} - {0.0, self.mu}
        if others:
            logger.warning(
                "the loaded state of the optimizer has momentum %s; compression still applies %s",
                others.pop(),
                self.mu,
            )
        self._take()

    def before_step(
        self, parameters: Iterable[Tuple[str, torch.nn.Parameter]], exempted: Collection[str]
    ) -> None:
        """Change averaged gradients into gradients for an optimizer without momentum.

        Parameters
        ----------
        parameters : iterable of (str, Parameter)
            The optimizer's parameters, with their names.
        exempted : collection of str
            The names of parameters whose compressor applies no momentum.
        """
        groups = param_groups(self.optimizer)
        if any(group["momentum"] for group in groups):
            logger.warning(
                "the optimizer's momentum is set to 0 again, because compression applies it"
            )
            self._take()
        decay = {
            parameter: group.get("weight_decay", 0.0)
            for group in groups
            for parameter in group["params"]
        }
        with torch.no_grad():
            for name, parameter in parameters:
                if parameter.grad is None or parameter not in decay:
                    continue
                if name in exempted:
                    self._add_to_gradient(name, parameter.grad)
                self._add_weight_decay(name, parameter, decay[parameter])

    def _of(self, kind: str, name: str, like: torch.Tensor) -> torch.Tensor:
        """Return the state of this kind and name; zeros at first."""
        states = self.state[kind]
        if name not in states:
            dtype = torch.float32 if like.dtype.itemsize < 4 else like.dtype
            states[name] = torch.zeros_like(like, dtype=dtype)
        states[name] = states[name].to(like.device)
        return states[name]

    def _add_to_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """m = mu m + g; then g = g + mu m with Nesterov momentum, else g = m."""
        m = self._of("gradient", name, gradient)
        m.mul_(self.mu).add_(gradient)
        if self._has_nesterov[name]:
            gradient.add_(self.mu * m)
        else:
            gradient.copy_(m)

    def _add_weight_decay(self, name: str, parameter: torch.nn.Parameter, decay: float) -> None:
        """w = mu (w + decay x); then g = g + w. Classic momentum adds the w before the update."""
        if not decay and name not in self.state["weight_decay"]:
            return
        w = self._of("weight_decay", name, parameter.detach())
        nesterov = self._has_nesterov[name]
        previous = None if nesterov else w.clone()
        w.add_(parameter.detach(), alpha=decay).mul_(self.mu)
        parameter.grad.add_(w if nesterov else previous)

"""The momentum of an optimizer's parameter groups, where gluon_gc applies it.

Momentum is applied to the gradient before it is compressed, so that the optimizer's is zero. What
is left for the optimizer's step is the momentum of gradients that travel uncompressed, and the
part that weight decay has in the optimizer's momentum.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, Mapping, Optional, Tuple

import torch
from torch.optim import Optimizer

from ..compression.momentum import require_linear
from ..log import logger
from .optimizer_hooks import param_groups


def momentum_of(optimizer: Optional[Optimizer]) -> Tuple[Optional[float], bool]:
    """The momentum of all parameter groups, None without, and whether it is Nesterov's.

    Raises
    ------
    ValueError
        Groups differ in it.
    """
    groups = optimizer.param_groups if optimizer is not None else []
    several = {(group.get("momentum") or None, bool(group.get("nesterov"))) for group in groups}
    if len(several) > 1:
        found = sorted({group.get("momentum") for group in groups})
        raise ValueError(
            "the optimizer's parameter groups must have the same momentum and nesterov, got "
            f"momentum {found}"
        )
    ((mu, nesterov),) = several or {(None, False)}
    return (float(mu) if mu else None), nesterov


class Momentum:
    """Applies momentum mu instead of an optimizer, whose own momentum it sets to 0.

    The optimizer's `state_dict` still has the momentum that its owner gave it.

    Parameters
    ----------
    optimizer : Optimizer
    mu : float
    has_nesterov : mapping
        Whether a parameter of that name has Nesterov's momentum, rather than the classic one.

    Raises
    ------
    ValueError
        The optimizer's update is not linear in the gradient, its dampening is not 0, or it
        maximizes.
    """

    def __init__(self, optimizer: Optimizer, mu: float, has_nesterov: Mapping[str, bool]) -> None:
        require_linear(optimizer, [torch.optim.SGD])
        for group in optimizer.param_groups:
            for key in ("dampening", "maximize"):
                if group.get(key):
                    raise ValueError(f"momentum is applied without {key}, got {group[key]}")
        self.mu, self._optimizer, self._has_nesterov = mu, optimizer, has_nesterov
        self.given = {"momentum": mu, "nesterov": optimizer.param_groups[0].get("nesterov", False)}
        self.state: Dict[str, Dict[str, torch.Tensor]] = {"gradient": {}, "weight_decay": {}}
        self._take()
        self._handles = (
            optimizer.register_state_dict_post_hook(self._saved),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        )

    def _take(self) -> None:
        for group in param_groups(self._optimizer):
            group.update(momentum=0.0, nesterov=False)

    def give_back(self) -> None:
        """Let the optimizer apply its momentum again."""
        for handle in self._handles:
            handle.remove()
        for group in param_groups(self._optimizer):
            group.update(self.given)

    def _saved(self, optimizer: Optimizer, state_dict: Dict[str, Any]) -> None:
        """Save what the owner gave the optimizer."""
        for group in state_dict["param_groups"]:
            group.update(self.given)

    def _loaded(self, optimizer: Optimizer) -> None:
        others = {group["momentum"] for group in param_groups(optimizer)} - {0.0, self.mu}
        if others:
            logger.warning(
                "the loaded state of the optimizer has momentum %s; compression goes on with %s",
                others.pop(),
                self.mu,
            )
        self._take()

    def before_step(
        self, parameters: Iterable[Tuple[str, torch.nn.Parameter]], exempted: Collection[str]
    ) -> None:
        """Change the averaged gradients into what an optimizer without momentum is to apply.

        Parameters
        ----------
        parameters : iterable of (str, Parameter)
            All of the optimizer's, with their names.
        exempted : collection of str
            Those whose compressor applies no momentum.
        """
        groups = param_groups(self._optimizer)
        if any(group["momentum"] for group in groups):
            logger.warning(
                "the optimizer's momentum is set to 0 again, since compression applies it"
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
        """The state of that name; zeros at first."""
        states = self.state[kind]
        if name not in states:
            dtype = torch.float32 if like.dtype.itemsize < 4 else like.dtype
            states[name] = torch.zeros_like(like, dtype=dtype)
        states[name] = states[name].to(like.device)
        return states[name]

    def _add_to_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """m = mu m + g, then g = g + mu m, or g = m."""
        m = self._of("gradient", name, gradient)
        m.mul_(self.mu).add_(gradient)
        if self._has_nesterov[name]:
            gradient.add_(self.mu * m)
        else:
            gradient.copy_(m)

    def _add_weight_decay(self, name: str, parameter: torch.nn.Parameter, decay: float) -> None:
        """w = mu (w + decay x), then g = g + w; classic momentum adds the w of the step before."""
        if not decay and name not in self.state["weight_decay"]:
            return
        w = self._of("weight_decay", name, parameter.detach())
        nesterov = self._has_nesterov[name]
        before = None if nesterov else w.clone()
        w.add_(parameter.detach(), alpha=decay).mul_(self.mu)
        parameter.grad.add_(w if nesterov else before)

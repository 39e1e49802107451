"""Momentum that gluon_gc applies instead of the optimizer; see `compression.momentum`.

The compressor applies that of compressed gradients, and this module the rest, in the optimizer's
step. During the step, the optimizer's own momentum is 0. Outside of it, the parameter groups have
the momentum that the user or a scheduler has set, and compression follows it.
"""

from __future__ import annotations

import weakref
from typing import Any, Collection, Iterable, Mapping

import torch
from torch.optim import Optimizer

from ...compression.momentum import require_linear
from .optimizer_hooks import param_groups, require_all, require_averaged
from .optimizers import KNOWN

_in_use: weakref.WeakSet[Momentum] = weakref.WeakSet()

_BUFFER = "momentum_buffer"  # the key of SGD's own momentum in its state


def momentum_of(optimizer: Optimizer | None) -> tuple[float | None, bool]:
    """Return the momentum of the first group that has one, and whether it is Nesterov's."""
    for group in param_groups(optimizer) if optimizer is not None else []:
        if group.get("momentum"):
            return float(group["momentum"]), bool(group.get("nesterov"))
    return None, False


class Momentum:
    """Applies momentum mu instead of an optimizer, whose own momentum is 0 during its step.

    `parameters` are all that it steps. `has_nesterov` says for each parameter name whether its
    momentum is Nesterov's or classic.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Mapping[str, torch.nn.Parameter],
        has_nesterov: Mapping[str, bool],
    ) -> None:
        require_linear(optimizer, [known.kind for known in KNOWN if known.is_linear])
        if any(momentum.optimizer is optimizer for momentum in _in_use):
            raise ValueError(
                "an earlier CompressionState applies the momentum of this optimizer: call its "
                "close() first, or, if both shall compress, leave out 'momentum' (and use another "
                "compressor than dgc), or put both models into one DistributedDataParallel with "
                "one CompressionState"
            )
        for group in param_groups(optimizer):
            for key in ("dampening", "maximize"):
                if group.get(key):
                    raise ValueError(f"momentum is applied without {key}, got {group[key]}")
        self._known = set(parameters.values())
        require_all(optimizer, self._known)
        self.optimizer, self._has_nesterov = optimizer, has_nesterov
        self._known_ids = set(map(id, self._known))
        self._taken: list[float] = []  # the groups' momentum, while the optimizer steps
        self.mu = self._current()  # at the last `follow`, or in a checkpoint loaded since
        # The momentum of uncompressed gradients and of the weight decay, by parameter name.
        self.state: dict[str, dict[str, torch.Tensor]] = {"gradient": {}, "weight_decay": {}}
        self._loaded = True  # whether the optimizer may have momentum of its own
        self._handles = [
            optimizer.register_load_state_dict_post_hook(self._set_loaded),
            optimizer.register_state_dict_post_hook(self._set_saved),
        ]
        _in_use.add(self)

    def _set_loaded(self, optimizer: Optimizer) -> None:
        self._loaded = True

    def _set_saved(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        """Save the momentum of the groups after a step that has failed, or in a step."""
        self._restore(saved["param_groups"])

    def _current(self) -> float:
        self.after_step()  # if the last step has failed
        groups = param_groups(self.optimizer)
        kinds = sorted({(group["momentum"], group["nesterov"]) for group in groups})
        if len(kinds) > 1:
            raise ValueError(
                "the optimizer's parameter groups must have the same momentum and nesterov, got "
                f"{kinds}"
            )
        mu = float(kinds[0][0])
        if not mu > 0:
            raise ValueError(
                f"the optimizer's momentum must stay above 0 while compression applies it, got {mu}"
            )
        return mu

    def follow(self) -> float:
        """Use the momentum that the optimizer has now for the next step, and return it."""
        mu, before = self._current(), self.mu
        if mu != before:
            for w in self.state["weight_decay"].values():
                w.mul_(mu / before)
            self.mu = mu
        return mu

    def take_loaded(
        self, parameters: Mapping[str, torch.nn.Parameter]
    ) -> dict[str, torch.Tensor] | None:
        """Take over the optimizer's own momentum, by parameter name, after a plain checkpoint.

        It contains the weight decay's part, and replaces all other momentum of the parameter. None:
        nothing was loaded since the last call.
        """
        if not self._loaded:
            return None
        self._loaded, buffers = False, {}
        for name, parameter in parameters.items():
            buffer = self.optimizer.state.get(parameter, {}).pop(_BUFFER, None)
            if buffer is not None:
                buffers[name] = buffer
                self.state["weight_decay"].pop(name, None)
        return buffers

    def replace(self, name: str, buffer: torch.Tensor) -> None:
        """Replace the momentum of a parameter whose gradient is sent uncompressed."""
        self.state["gradient"].pop(name, None)  # its layout may differ
        self._of("gradient", name, buffer).copy_(buffer)

    def give_back(self) -> None:
        """Let the optimizer apply its own momentum again."""
        _in_use.discard(self)
        for handle in self._handles:
            handle.remove()
        self.after_step()

    def before_step(
        self, parameters: Iterable[tuple[str, torch.nn.Parameter]], exempted: Collection[str]
    ) -> None:
        """Turn averages into gradients for an optimizer without momentum.

        `exempted` are the names of parameters whose compressor applies none.
        """
        mu, decays = self._current(), {}
        for group in param_groups(self.optimizer):
            ids = map(id, group["params"])
            decays.update(dict.fromkeys(ids, group.get("weight_decay", 0.0)))
        if not decays.keys() <= self._known_ids:  # some are new, or were frozen
            require_averaged(self.optimizer, self._known, "CompressionState")
        if mu == self.mu and not any((exempted, self.state["weight_decay"], *decays.values())):
            return
        used = [(n, p) for n, p in parameters if p.grad is not None and id(p) in decays]
        if used and mu != self.mu:
            raise ValueError(
                f"the optimizer's momentum was changed from {self.mu} to {mu} between backward and "
                "step, but compression has applied it: change it after the step, as PyTorch's "
                "schedulers do"
            )
        with torch.no_grad():
            for name, parameter in used:
                if name in exempted:
                    self._add_to_gradient(name, parameter.grad)
                decay = decays[id(parameter)]
                if decay or name in self.state["weight_decay"]:
                    self._add_weight_decay(name, parameter, decay)

    def take(self) -> None:
        """Set the optimizer's own momentum to 0, until `after_step`."""
        groups = param_groups(self.optimizer)
        self._taken = self._taken or [group["momentum"] for group in groups]
        for group in groups:
            group["momentum"] = 0.0

    def after_step(self) -> None:
        """Give the parameter groups the momentum back that `take` has set to 0."""
        self._restore(param_groups(self.optimizer))
        self._taken = []

    def _restore(self, groups: Iterable[dict[str, Any]]) -> None:
        for group, mu in zip(groups, self._taken):
            group["momentum"] = group["momentum"] or mu

    def _of(self, kind: str, name: str, like: torch.Tensor) -> torch.Tensor:
        states = self.state[kind]
        if name not in states:
            dtype = torch.float32 if like.dtype.itemsize < 4 else like.dtype
            states[name] = torch.zeros_like(like, dtype=dtype)
        states[name] = states[name].to(like.device)
        if like.is_sparse and not states[name].is_sparse:  # from a checkpoint
            states[name] = _sparse(states[name], like.sparse_dim())
        return states[name]

    def _add_to_gradient(self, name: str, gradient: torch.Tensor) -> None:
        m = self._of("gradient", name, gradient)
        (m._values() if m.is_sparse else m).mul_(self.mu)  # m stays coalesced
        _add(m, gradient)
        if self._has_nesterov[name]:
            _add(gradient, self.mu * m)
        else:
            gradient.copy_(m)

    def _add_weight_decay(self, name: str, parameter: torch.nn.Parameter, decay: float) -> None:
        w = self._of("weight_decay", name, parameter.detach())
        nesterov = self._has_nesterov[name]
        previous = None if nesterov else w.clone()
        w.add_(parameter.detach(), alpha=decay).mul_(self.mu)
        parameter.grad.add_(w if nesterov else previous)


def _add(total: torch.Tensor, tensor: torch.Tensor) -> None:
    """Add in place. On a GPU, `add_` appends sparse rows, which later are added in any order."""
    total.add_(tensor)
    if total.is_sparse and not total.is_coalesced():
        total.copy_(total.coalesce())


def _sparse(dense: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Return the rows that are not zero. `to_sparse` takes minutes for large tensors."""
    rows = dense.unsqueeze(-1).flatten(dimensions).any(-1).nonzero().T
    values = dense[tuple(rows)]
    return torch.sparse_coo_tensor(
        rows, values, dense.shape, check_invariants=False, is_coalesced=True
    )

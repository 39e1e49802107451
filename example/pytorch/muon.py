"""Muon for the matrices of a model's blocks, and AdamW for all other parameters."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.optim import Optimizer


class MuonAdamW(Optimizer):
    """One optimizer of two, so that one DistributedOptimizer averages what both have changed.

    Both have the same learning rate: Muon's updates have the root mean square of AdamW's
    ("match_rms_adamw", Liu et al. 2025, "Muon is scalable for LLM training").
    """

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW) -> None:
        self.muon, self.adamw = muon, adamw
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let both optimizers use the groups and the state of this one."""
        count = len(self.muon.param_groups)
        self.muon.param_groups = self.param_groups[:count]
        self.adamw.param_groups = self.param_groups[count:]
        self.muon.state = self.adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.step()
        self.adamw.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def muon_adamw(model: torch.nn.Module, adamw: torch.optim.AdamW) -> MuonAdamW:
    """Return Muon for the matrices within `model.blocks`, which it takes from `adamw`."""
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    taken = set(matrices)
    settings = adamw.param_groups[0]
    muon = torch.optim.Muon(
        matrices,
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        adjust_lr_fn="match_rms_adamw",
    )
    for group in adamw.param_groups:
        group["params"] = [p for p in group["params"] if p not in taken]
    return MuonAdamW(muon, adamw)

"""Gradients that were exchanged and then dropped: no optimizer has stepped with them.

Backward has compressed them by then, and residual and momentum have taken them in. That is undone
from copies. A copy costs memory and time, so that copies are only made once a step was left out.
"""

from __future__ import annotations

from typing import Callable, Iterable, List

import torch

from ..log import logger
from .optimizer_hooks import StepWatch


class LeftOut:
    """Finds such gradients when the next ones are exchanged.

    Parameters
    ----------
    parameters : iterable of Tensor
        Their parameters.
    take_back : callable
        Undoes the exchange of the tensors with these names.

    Attributes
    ----------
    count : int
        How many steps were left out.
    keeps : bool
        Whether copies are made.
    """

    def __init__(
        self, parameters: Iterable[torch.Tensor], take_back: Callable[[Iterable[str]], None]
    ) -> None:
        self.count, self.keeps = 0, False
        self._watch, self._take_back = StepWatch(parameters), take_back
        self._exchanged: List[str] = []
        self._begun = False  # whether anything is in residual and momentum already

    def begin(self, allowed: bool = False) -> bool:
        """Before gradients of a new step are exchanged: whether the step before was left out.

        `allowed`: if so, it is none that has to be undone.
        """
        left_out = bool(self._exchanged) and not self._watch.stepped() and not allowed
        if left_out:
            self._undo(self._exchanged)
        self._begun = self._begun or (bool(self._exchanged) and not left_out)
        self._exchanged = []
        return left_out

    def exchange(self, names: Iterable[str]) -> None:
        """Note that these tensors are exchanged now."""
        self._exchanged += names

    def loaded(self) -> None:
        """Note that residual and momentum come from a checkpoint."""
        self._begun, self._exchanged = True, []

    def _undo(self, names: List[str]) -> None:
        exact = self.keeps or not self._begun
        if not self.keeps:
            logger.warning(
                "the gradient of %s and others were exchanged, and then dropped: no optimizer has "
                "stepped since. %s Gradients that nobody needs cost traffic, too: freeze such "
                "parameters (requires_grad_(False)), or do not synchronize gradients (no_sync, "
                "set_requires_gradient_sync), during that backward",
                names[0],
                "That is undone."
                if exact
                else "Their residual and momentum keep this one; from now on, such steps are "
                "undone, which takes copies of all residuals and momentum.",
            )
        if exact:
            self._take_back(names)
        self.count, self.keeps = self.count + 1, True

    def close(self) -> None:
        """Watch optimizers no more."""
        self._watch.close()

"""LeftOut: detects and undoes exchanges whose gradients no optimizer has used.

Backward compresses gradients, so residual and momentum already contain them. If no optimizer steps
afterwards, the step is skipped, and copies of residual and momentum undo the exchange. Copies cost
memory and time, so they are made only after the first skipped step.
"""

from __future__ import annotations

from typing import Callable, Iterable, List

import torch

from ..log import logger
from .optimizer_hooks import StepWatch


class LeftOut:
    """Detects a skipped step when the gradients of the next step are exchanged.

    Parameters
    ----------
    parameters : iterable of Tensor
        The parameters of the gradients.
    take_back : callable
        Undoes the exchange of the tensors with these names.

    Attributes
    ----------
    count : int
        The number of skipped steps.
    keeps : bool
        Whether copies are made.
    """

    def __init__(
        self, parameters: Iterable[torch.Tensor], take_back: Callable[[Iterable[str]], None]
    ) -> None:
        self.count, self.keeps = 0, False
        self._watch, self._take_back = StepWatch(parameters), take_back
        self._exchanged: List[str] = []
        self._begun = False  # whether residual and momentum contain anything

    def begin(self, allowed: bool = False) -> bool:
        """Return whether the last step was skipped. Called before the gradients of a new step.

        `allowed`: a skipped step is intended, and is not undone.
        """
        left_out = bool(self._exchanged) and not self._watch.stepped() and not allowed
        if left_out:
            self._undo(self._exchanged)
        self._begun = self._begun or (bool(self._exchanged) and not left_out)
        self._exchanged = []
        return left_out

    def exchange(self, names: Iterable[str]) -> None:
        """Record that these tensors are exchanged now."""
        self._exchanged += names

    def loaded(self) -> None:
        """Record that residual and momentum come from a checkpoint."""
        self._begun, self._exchanged = True, []

    def _undo(self, names: List[str]) -> None:
        exact = self.keeps or not self._begun
        if not self.keeps:
            logger.warning(
                "the gradients of %s and other parameters were exchanged, but no optimizer has "
                "used them. %s To save the traffic, freeze such parameters during that backward "
                "(requires_grad_(False)), or do not synchronize their gradients (no_sync, "
                "set_requires_gradient_sync)",
                names[0],
                "The exchange is undone."
                if exact
                else "Residual and momentum keep this exchange; later ones like it are undone, "
                "which needs copies of all residuals and momentum.",
            )
        if exact:
            self._take_back(names)
        self.count, self.keeps = self.count + 1, True

    def close(self) -> None:
        """Stop watching the optimizers."""
        self._watch.close()

"""LeftOut: detects and undoes exchanges whose gradients no optimizer has used.

Backward compresses gradients, so residual and momentum already contain them. If no optimizer steps
afterwards, the step is skipped, and copies of residual and momentum undo the exchange. Copies cost
memory and time, so they are made only after the first skipped step.

A backward pass may also add to averages that no optimizer has used yet. It then continues their
step: the gradients that it exchanges contain these averages.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Set

import torch

from ..log import logger
from .optimizer_hooks import StepWatch


class LeftOut:
    """Detects a skipped step when gradients are exchanged next.

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
        self._exchanged: Dict[str, None] = {}  # in this step; an ordered set
        self._begun = False  # whether residual and momentum contain anything

    @property
    def waits(self) -> bool:
        """Whether gradients were exchanged that no optimizer has used so far."""
        return bool(self._exchanged) and not self._watch.stepped

    def begin(self, adds: bool = False, allowed: bool = False) -> bool:
        """Begin a step, or continue the last one. Return whether it is continued.

        Parameters
        ----------
        adds : bool
            Whether backward has added to the averages of the last exchange.
        allowed : bool
            Whether it is intended that no optimizer used them. The exchange is not undone.
        """
        waits = self.waits and not allowed
        self._watch.restart()
        if waits and adds:
            return True
        if waits:
            self._undo(list(self._exchanged))
        self._begun = self._begun or (bool(self._exchanged) and not waits)
        self._exchanged = {}
        return False

    def to_keep(self, names: Iterable[str]) -> Set[str]:
        """Return those of these tensors to copy the residual and momentum of, before an exchange.

        Those that were exchanged in this step already have the copies from its beginning.
        """
        return set(names).difference(self._exchanged) if self.keeps else set()

    def exchanged(self, names: Iterable[str]) -> None:
        """Record that these tensors were exchanged. They are the same on all workers."""
        self._exchanged.update(dict.fromkeys(names))

    # Checkpoints

    def to_undo(self) -> List[str]:
        """Return the tensors whose exchange a checkpoint must not contain."""
        return list(self._exchanged) if self.waits and self._exact else []

    def keeps_next(self) -> bool:
        """Return whether copies are made in the next step, if no optimizer steps before it."""
        return self.keeps or self.waits

    def loaded(self, keeps: bool = False) -> None:
        """Record that residual and momentum come from a checkpoint, with its `keeps_next`."""
        self._begun, self._exchanged, self.keeps = True, {}, keeps

    @property
    def _exact(self) -> bool:
        """Whether the state before the last exchange is known."""
        return self.keeps or not self._begun

    def _undo(self, names: List[str]) -> None:
        exact = self._exact
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

"""Additions: detects backward passes that add to averaged gradients."""

from __future__ import annotations

from functools import partial
from typing import Callable, Iterable, Optional, Set

import torch


class Additions:
    """Detects that backward adds to averages, because nobody has set them to None or to zero.

    DistributedDataParallel then averages the sum, and its result replaces the averages.

    Parameters
    ----------
    parameters : iterable of Tensor
    wait : callable
        Returns whether averages wait for an optimizer. Gradients are not read otherwise.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], wait: Callable[[], bool]) -> None:
        self._wait, self._found = wait, False
        self._averaged: Set[torch.Tensor] = set()  # backward has not come to them again
        self._handles = [p.register_hook(partial(self._touch, p)) for p in parameters]

    def averaged(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that the gradients of these parameters are averaged now."""
        self._averaged.update(parameters)

    def take(self) -> bool:
        """Return whether backward has added to averages, and forget them."""
        found, self._found = self._found, False
        self._averaged.clear()
        return found

    def _touch(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Called before backward adds to the gradient of a parameter."""
        if parameter in self._averaged:
            self._averaged.discard(parameter)
            self._found = self._found or (self._wait() and is_nonzero(parameter.grad))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def is_nonzero(gradient: Optional[torch.Tensor]) -> bool:
    """Return whether a gradient has an element that is not zero. None has none."""
    if gradient is None:
        return False
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.any())

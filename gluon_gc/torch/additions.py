"""Additions: detects backward passes that add to averaged gradients."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Callable, Iterable, Optional, Set

import torch

from .optimizer_hooks import weakly


class Additions:
    """Detects that averages are still in use when the next gradients are averaged.

    Nobody has set them to None or to zero, and no optimizer has used them: backward adds to them,
    or leaves them for the optimizer. DistributedDataParallel averages the sums, which then replace
    the averages.

    Parameters
    ----------
    parameters : iterable of Tensor
    wait : callable
        Returns whether averages wait for an optimizer. Gradients are not read otherwise.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], wait: Callable[[], bool]) -> None:
        self._wait, self._found = wait, False
        self._averaged: Set[torch.Tensor] = set()  # backward has not added to them
        self._nonzero: Set[torch.Tensor] = set()  # before backward adds to them
        # A script may compile a whole step, but torch.compile cannot trace the hook.
        touch = torch.compiler.disable(weakly(self._touch))
        self._handles = [p.register_hook(partial(touch, weakref.ref(p))) for p in parameters]

    def averaged(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that the gradients of these parameters are averages now."""
        self._averaged.update(parameters)

    def _touch(self, reference: weakref.ref[torch.Tensor], gradient: torch.Tensor) -> None:
        """Called before backward adds to a gradient, and by `torch.autograd.grad`."""
        parameter = reference()
        self._nonzero.discard(parameter)
        if parameter in self._averaged and self._wait() and _is_nonzero(parameter):
            self._nonzero.add(parameter)

    def made(self, parameter: torch.Tensor) -> None:
        """Record that backward has added to the gradient of a parameter."""
        self._found = self._found or parameter in self._nonzero
        self._averaged.discard(parameter)

    def take(self) -> bool:
        """Return whether averages are still in use. If not, forget them."""
        found = self._found or (self._wait() and any(map(_is_nonzero, self._averaged)))
        self._found = False
        self._nonzero.clear()
        if not found:
            self._averaged.clear()
        return found

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


def _is_nonzero(parameter: torch.Tensor) -> bool:
    return is_nonzero(parameter.grad)

"""Notes the gradients that backward makes."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Set

import torch


class MadeGradients:
    """Watches parameters with hooks.

    Parameters
    ----------
    names : mapping
        The parameters' names.

    Attributes
    ----------
    notify : callable
        Called with each parameter after backward has added to its gradient.
    """

    def __init__(self, names: Mapping[torch.nn.Parameter, str]) -> None:
        self._names, self._made = names, set()
        self.notify: Callable[[torch.Tensor], None] = lambda parameter: None
        self._handles = [p.register_post_accumulate_grad_hook(self._note) for p in names]

    def _note(self, parameter: torch.Tensor) -> None:
        self._made.add(self._names[parameter])
        self.notify(parameter)

    def take(self, names: Iterable[str]) -> Set[str]:
        """The parameters among these whose gradients backward has made since the last call."""
        made = self._made.intersection(names)
        self._made -= made
        return made

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

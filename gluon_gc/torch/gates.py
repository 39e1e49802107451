"""Gates: forward pre-hooks that report which parameters are about to be used."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch
from torch.nn import Module

Parameters = Iterable[torch.Tensor]


class Gates:
    """Forward pre-hooks of all modules of a model.

    A module needs its own parameters. Its forward may also use the parameters of submodules without
    calling them, as nn.MultiheadAttention does. The first forward shows which modules are called.
    The parameters of the other modules are needed by the nearest enclosing module that is called.

    Parameters
    ----------
    model : Module
    opened : callable
        Called before a module's forward, with the parameters that the module needs.

    Attributes
    ----------
    announced : set of Tensor
        The parameters that a called module needs; their use is always reported.
    """

    def __init__(self, model: Module, opened: Callable[[Parameters], None]) -> None:
        self._opened, self.announced = opened, set()
        self._called: Set[Module] = set()
        self._needs: Optional[Dict[Module, List[torch.Tensor]]] = None  # unknown until `learn`
        self._around: Dict[Module, List[Module]] = defaultdict(list)
        for module in model.modules():
            for child in module.children():
                self._around[child].append(module)
            module.register_forward_pre_hook(_Gate(self), prepend=True)
        self._modules = list(model.modules())

    def learn(self) -> None:
        """After the first forward, determine which parameters each module needs."""
        if self._needs is not None or not self._called:
            return
        self._needs = defaultdict(list)
        for module in self._modules:
            parameters = list(module._parameters.values())
            callers = self._callers(module)
            for caller in {module, *callers}:
                self._needs[caller] += [p for p in parameters if p is not None]
            if callers:
                self.announced.update(parameters)

    def _callers(self, module: Module) -> Set[Module]:
        """Return the nearest modules that were called: this one, or the modules around it."""
        if module in self._called:
            return {module}
        return {caller for outer in self._around[module] for caller in self._callers(outer)}

    def enter(self, module: Module) -> None:
        """Handle the start of a module's forward."""
        if self._needs is None:
            self._called.add(module)
        else:
            self._opened(self._needs[module])


class _Gate:
    """The hook of one module. A copy of a model gets hooks that do nothing."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def __call__(self, module: Module, args: Any) -> None:
        self._gates.enter(module)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Open, ()


class _Open:
    """A hook that does nothing."""

    def __call__(self, module: Module, args: Any) -> None:
        pass

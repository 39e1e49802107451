"""Forward pre-hooks that tell which parameters are about to be used."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch
from torch.nn import Module

Parameters = Iterable[torch.Tensor]


class Gates:
    """Forward pre-hooks of all modules of a model.

    A module needs its own parameters. Its forward may also use those of modules inside it without
    calling them, as nn.MultiheadAttention does. The first forward shows which modules are called;
    parameters of the others are needed by the nearest module around them that is.

    Parameters
    ----------
    model : Module
    opened : callable
        Is called before a module's forward, with the parameters that the module needs.

    Attributes
    ----------
    announced : set of Tensor
        The parameters that are needed by a module that was called in the first forward.
    """

    def __init__(self, model: Module, opened: Callable[[Parameters], None]) -> None:
        self._opened, self.announced = opened, set()
        self._called: Set[Module] = set()
        self._needs: Optional[Dict[Module, List[torch.Tensor]]] = None  # until it is learnt
        self._around: Dict[Module, List[Module]] = defaultdict(list)
        for module in model.modules():
            for child in module.children():
                self._around[child].append(module)
            module.register_forward_pre_hook(_Gate(self), prepend=True)
        self._modules = list(model.modules())

    def learn(self) -> None:
        """Find out, once there was a forward, which parameters each module needs."""
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
        """The nearest modules that were called: this one, or modules around it."""
        if module in self._called:
            return {module}
        return {caller for outer in self._around[module] for caller in self._callers(outer)}

    def enter(self, module: Module) -> None:
        """What is done before a module's forward."""
        if self._needs is None:
            self._called.add(module)
        else:
            self._opened(self._needs[module])


class _Gate:
    """The hook of a module. A copy of a model has hooks that do nothing."""

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

"""The base class of distributed optimizers, and copies of such optimizers."""

from __future__ import annotations

from typing import Any, Mapping

from torch.optim import Optimizer

from ..gradients.optimizer_hooks import let_step_call_hooks


class _Added:
    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (kind_of(self), self.__getstate__())


class Distributed(_Added):
    """Added to the class of an optimizer that was made distributed."""


class _Copied(_Added):
    """Added to the class of a copied or unpickled distributed optimizer, which cannot step."""


def kind_of(optimizer: Optimizer) -> type[Optimizer]:
    """Return the class that an optimizer had before it was made distributed."""
    return next(c for c in type(optimizer).__mro__ if not issubclass(c, _Added))


def restore(optimizer: Optimizer) -> None:
    optimizer.__class__ = kind_of(optimizer)


def _copied(kind: type[Optimizer], contents: Mapping[str, Any]) -> Optimizer:
    copied_class = type(kind.__name__, (_Copied, kind), {})
    optimizer = copied_class.__new__(copied_class)
    optimizer.__setstate__(contents)
    let_step_call_hooks(optimizer)
    optimizer.register_step_pre_hook(_refuse)
    return optimizer


def _refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, _Copied):
        raise RuntimeError(
            "this is a copy of a DistributedOptimizer, which cannot average gradients: call "
            "DistributedOptimizer with it"
        )

"""The base class of distributed optimizers, and copies of them."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple, Type

from torch.optim import Optimizer


class Distributed:
    """Mixed into the class of an optimizer that was made distributed."""

    def contents(self) -> Dict[str, Any]:
        """An optimizer's defaults, state and parameter groups, as a copy of it has them."""
        return self.__getstate__()

    def __reduce__(self) -> Tuple[Any, ...]:
        return _copied, (kind_of(self), self.contents())


class _Copied:
    """A copy of a distributed optimizer, or one that was unpickled: it steps nothing."""

    def __reduce__(self) -> Tuple[Any, ...]:
        return _copied, (kind_of(self), self.__getstate__())


def kind_of(optimizer: Optimizer) -> Type[Optimizer]:
    """The class that an optimizer had before it was made distributed."""
    return next(c for c in type(optimizer).__mro__ if not issubclass(c, (Distributed, _Copied)))


def _copied(kind: Type[Optimizer], contents: Mapping[str, Any]) -> Optimizer:
    """The optimizer that is unpickled."""
    made = type(kind.__name__, (_Copied, kind), {})
    optimizer = made.__new__(made)
    optimizer.__setstate__(contents)
    optimizer.register_step_pre_hook(_refuse)
    return optimizer


def _refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, _Copied):
        raise RuntimeError(
            "this is a copy of a DistributedOptimizer, which averages nothing: call "
            "DistributedOptimizer with it"
        )

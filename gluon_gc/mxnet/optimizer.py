"""DistributedOptimizer: an MXNet optimizer that first averages gradients over all workers."""

from __future__ import annotations

import itertools
from typing import Any, List, Sequence, Tuple, Union

from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from .push_pull import byteps_push_pull
from .runtime import default_exchange
from .trainer_facts import of_optimizer

_numbers = itertools.count()  # equal on all workers: they create optimizers in one order


class DistributedOptimizer(Optimizer):
    """Wraps an optimizer for the Module API or for hand-written updates.

    Gradients travel uncompressed. For Gluon, use `DistributedTrainer`. All workers must create
    their optimizers in the same order.

    Parameters
    ----------
    optimizer : Optimizer
        Applies the averaged gradients. Its attributes are those of this object. The workers
        compare its class and hyper-parameters at the first update.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an mxnet Optimizer, got {optimizer!r}")
        vars(self).update(
            _optimizer=optimizer,
            _name=f"optimizer{next(_numbers)}",
            _compared=False,  # whether the workers have compared their optimizers
        )

    @property
    def unwrapped(self) -> Optimizer:
        """The wrapped optimizer."""
        return self._optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)

    def __reduce__(self) -> Tuple[type, Tuple[Optimizer]]:
        """For pickle and copy: the only state is the wrapped optimizer."""
        return type(self), (self._optimizer,)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(
        self, index: Union[Any, Sequence[Any]], grad: Union[NDArray, List[NDArray]]
    ) -> None:
        if not self._compared:
            facts = of_optimizer(self._optimizer)
            default_exchange().agree("DistributedOptimizer.update", facts)
            vars(self)["_compared"] = True
        many = isinstance(index, (list, tuple))
        for i, gradient in zip(index, grad) if many else [(index, grad)]:
            byteps_push_pull(gradient, name=f"{self._name}.gradient_{i}")

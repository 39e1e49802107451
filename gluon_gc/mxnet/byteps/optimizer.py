"""DistributedOptimizer: an MXNet optimizer that first averages gradients over all workers."""

from __future__ import annotations

import itertools
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from ... import mailbox
from ..exchange.exchange import Exchange
from ..exchange.gradient import legacy
from ..state.optimizer_states import arrays_of, copy_progress
from ..trainer.optimizer_facts import of_optimizer, progress_of
from .push_pull import byteps_push_pull
from .runtime import default_exchange

_CALL = "DistributedOptimizer.update"
_numbers = itertools.count()  # equal on all workers: they create optimizers in one order


class DistributedOptimizer(Optimizer):
    """Wraps an optimizer for the Module API or for hand-written updates.

    Gradients travel uncompressed. For Gluon, use `DistributedTrainer`. All workers must create
    their optimizers in the same order. If workers have made different numbers of updates, because
    `bps.resume` has taken in new workers, the first update of each weight copies the weight, its
    state and its count of updates from worker 0.

    Parameters
    ----------
    optimizer : Optimizer
        Applies the averaged gradients. Its attributes are those of this object. The workers
        compare its class and hyper-parameters at the first update.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an mxnet Optimizer, got {optimizer!r}")
        if mailbox.current() is not None:
            raise ValueError(
                "DistributedOptimizer averages nothing with a mailbox: use DistributedTrainer with "
                "algorithm={'name': 'local_steps', ...}"
            )
        vars(self).update(
            _optimizer=optimizer,
            _name=f"optimizer{next(_numbers)}",
            _exchange=None,  # in which the workers have compared their optimizers
            _copies=False,  # whether weights and states are copied from worker 0
            _copied=set(),  # the indices of weights that are copied
            _first={},  # the gradients of the first step, by name and index; None afterwards
        )

    @property
    def unwrapped(self) -> Optimizer:
        return self._optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)

    def __reduce__(self) -> tuple[type, tuple[Optimizer]]:
        """For pickle and copy: the only state is the wrapped optimizer."""
        return type(self), (self._optimizer,)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, weight, grad, state)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, weight, grad, state)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        exchange = default_exchange()
        if self._exchange is not exchange:
            self._compare(exchange)
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        for i, w, g, s in zip(index, weight, grad, state):
            if self._copies and i not in self._copied:
                self._copied.add(i)
                self._copy_from_root(i, w, s)
            byteps_push_pull(g, name=f"{self._name}.gradient_{i}")
            if self._first is not None:
                self._require_added(i, g)

    def _require_added(self, index: Any, gradient: NDArray) -> None:
        """In the first step, raise ValueError if a Module's contexts have different gradients.

        Such a Module gives each context an index of its own for a name. A KVStore adds the
        gradients, but with kvstore=None nobody does.
        """
        name = self._optimizer.idx2name.get(index)
        gradients = self._first.setdefault(name, {})
        if index in gradients:
            vars(self).update(_first=None)
            return
        if name is not None and gradients:
            other = next(iter(gradients.values()))
            if not np.array_equal(other.asnumpy(), gradient.asnumpy(), equal_nan=True):
                raise ValueError(
                    f"the contexts of a Module have different gradients of {name}, which nobody "
                    "adds: start one worker for each context, or use DistributedTrainer"
                )
        gradients[index] = gradient

    def _compare(self, exchange: Exchange) -> None:
        """Compare the optimizers of all workers, after worker 0's progress is copied."""
        optimizer = self._optimizer
        updates = [("the optimizer", {"updates": list(progress_of(optimizer).values())})]
        copies = exchange.num_workers > 1 and not exchange.agrees(_CALL, updates)
        if copies:
            copy_progress(optimizer, exchange, root_rank=0)
        exchange.agree(_CALL, of_optimizer(optimizer))
        vars(self).update(_exchange=exchange, _copies=copies, _copied=set())

    def _copy_from_root(self, index: Any, weight: NDArray, state: Any) -> None:
        """Overwrite a weight, its state and its count of updates with those of worker 0."""
        counts, first = self._optimizer._index_update_count, self._optimizer.begin_num_update
        count = mx.nd.array([counts.get(index, first)], dtype="int32")
        called = [f"the count of weight {index}", f"weight {index}"]
        arrays = [count, weight, *arrays_of(state)]
        called += [f"the optimizer's state of weight {index}"] * (len(arrays) - len(called))
        self._exchange.broadcast(legacy(arrays), 0, called)
        counts[index] = int(count.asscalar())

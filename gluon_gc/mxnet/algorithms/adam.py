"""MXNet's Adam, for algorithms that need Adam."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

import mxnet as mx
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import Adam, Optimizer, Updater

from ...algorithms.adam import Update
from ..exchange.gradient import legacy
from ..trainer.parameters import first_copy


class WrappedAdam:
    """MXNet's side of `algorithms.adam.Adam`. The first context's updater has the moments."""

    def __init__(self, updaters: Sequence[Updater], params: Mapping[int, Parameter]) -> None:
        self._updaters, self._params = updaters, params
        self._optimizer: Adam = updaters[0].optimizer
        self._indices = {param.name: index for index, param in params.items()}

    def moments(self, name: str) -> tuple[NDArray, NDArray]:
        index = self._indices[name]
        return self._state(self._updaters[0], index, first_copy(self._params[index]))

    def variance(self, name: str) -> NDArray:
        return self.moments(name)[1].sum()

    def betas(self, name: str) -> tuple[float, float]:
        return self._optimizer.beta1, self._optimizer.beta2

    def gradient(self, name: str) -> NDArray:
        index = self._indices[name]
        (gradient,) = legacy(self._params[index].list_grad()[:1])
        decay, limit = self._optimizer._get_wd(index), self._optimizer.clip_gradient
        if decay:
            gradient = gradient + decay * first_copy(self._params[index])
        return mx.nd.clip(gradient, -limit, limit) if limit and limit > 0 else gradient

    def as_float(self, number: NDArray) -> float:
        return float(number.asscalar())

    def count(self) -> None:
        contexts = {context for param in self._params.values() for context in param.list_ctx()}
        for device in {context.device_id for context in contexts}:
            self._optimizer._set_current_context(device)
            self._optimizer._update_count(list(self._params))

    @property
    def steps(self) -> int:
        return self._optimizer.num_update

    def update(self, name: str, frozen: float) -> Update:
        optimizer, index = self._optimizer, self._indices[name]
        optimizer._set_current_context(self._params[index].list_ctx()[0].device_id)
        steps = optimizer._index_update_count[index]
        correction1 = 1 - optimizer.beta1**steps
        correction2 = 1 - optimizer.beta2 ** max(1, steps - frozen)
        _, v = self.moments(name)
        rate = optimizer._get_lr(index) * math.sqrt(correction2) / correction1
        return Update(rate, v.sqrt() + optimizer.epsilon, 0.0)

    def broadcast_to_contexts(self) -> None:
        for index, param in self._params.items():
            moments = self.moments(param.name)
            for updater, weight in zip(self._updaters[1:], param.list_data()[1:]):
                for moment, copy in zip(moments, self._state(updater, index, weight)):
                    moment.copyto(copy)

    @staticmethod
    def _state(updater: Updater, index: int, weight: NDArray) -> tuple[NDArray, NDArray]:
        """An updater's state of a parameter, on the context of its weight."""
        if index not in updater.states:
            updater.states[index] = updater.optimizer.create_state_multi_precision(index, weight)
            updater.states_synced[index] = True
        elif not updater.states_synced[index]:  # after it was loaded
            state = updater.sync_state_context(updater.states[index], weight.context)
            updater.states[index], updater.states_synced[index] = state, True
        return updater.states[index]


def require_adam(name: str, optimizer: Optimizer) -> None:
    """Raise ValueError unless an optimizer is an Adam that the algorithm `name` can work with."""
    if type(optimizer) is not Adam:
        kind = type(optimizer).__name__
        raise ValueError(f"algorithm {name} needs mxnet.optimizer.Adam, got {kind}")
    if optimizer.epsilon <= 0:
        raise ValueError(f"algorithm {name} needs epsilon > 0, got {optimizer.epsilon!r}")

"""The methods and attributes that gluon.Trainer and AMP use of a trainer."""

from __future__ import annotations

from typing import Any, Callable, Optional

import mxnet as mx
from mxnet.gluon import Trainer
from mxnet.optimizer import Updater

from . import freshness
from .amp import AgreedLossScaler
from .averaging import Averaging
from .momentum import Momentum, switched_off


class HookedTrainer(Trainer):
    """A gluon.Trainer without a KVStore, whose loss scaler all workers update together.

    Attributes
    ----------
    _name : str
        The prefix of the names of the trainer's tensors.
    _averaging : Averaging
    _momentum : Momentum or None
        The momentum that is applied instead of the optimizer's.
    """

    _name: str
    _averaging: Averaging
    _momentum: Optional[Momentum]

    def _init_kvstore(self) -> None:
        self._update_on_kvstore = False
        self._kv_initialized = True

    def _init_params(self) -> None:
        """Do nothing, because DistributedTrainer broadcasts the parameters."""
        self._params_to_init = []

    def _apply(self, rescale: float, ignore_stale_grad: bool) -> None:
        """Update the parameters from their gradients times `rescale`."""
        self._optimizer.rescale_grad = rescale
        self._init_kvstore()
        if self._momentum is None:
            self._update(ignore_stale_grad)
            return
        self._momentum.add_weight_decay(self._optimizer, self._params, rescale)
        with switched_off(self._optimizer):
            self._update(ignore_stale_grad)

    def _update_alone(self, batch_size: float, ignore_stale_grad: bool) -> None:
        """Update the parameters from the gradients of this worker, as gluon.Trainer does."""
        scaler = self._amp_loss_scaler
        if scaler is not None and scaler.check_alone(self._params):
            freshness.use_up(self._params)
            return
        if not ignore_stale_grad:
            freshness.require_fresh(self._params)
        self._apply(self._scale / batch_size, ignore_stale_grad)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Update as gluon.Trainer does, but with the same schedule of Nadam on each context."""
        if len(self._updaters) == 1 or not isinstance(self._optimizer, mx.optimizer.Nadam):
            super()._update(ignore_stale_grad)
            return
        optimizer, updaters = self._optimizer, self._updaters
        schedule = optimizer.m_schedule

        def with_schedule(updater: Updater) -> Callable[..., None]:
            def update(*tensors: Any) -> None:
                optimizer.m_schedule = schedule
                updater(*tensors)

            return update

        self._updaters = list(map(with_schedule, updaters))
        try:
            super()._update(ignore_stale_grad)
        finally:
            self._updaters = updaters

    # AMP: amp.init_trainer sets this attribute

    @property
    def _amp_loss_scaler(self) -> Optional[AgreedLossScaler]:
        return self.__dict__.get("_agreed_loss_scaler")

    @_amp_loss_scaler.setter
    def _amp_loss_scaler(self, scaler: Any) -> None:
        self._agreed_loss_scaler = AgreedLossScaler(
            scaler, lambda flag, about: self._averaging.total_overflow(flag, about)
        )

    def _divided_by_loss_scale(self, scaler: Optional[AgreedLossScaler]) -> None:
        """Reset the scale to 1, because the averages are already divided by the loss scale."""
        if scaler is not None and not scaler.has_overflow(self._params):
            self._scale = 1.0

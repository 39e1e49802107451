"""The states of a trainer's optimizer in a checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from mxnet.gluon import Parameter
from mxnet.optimizer import Optimizer, Updater

from ..checkpoint import fitting
from .momentum import momentum_of


class OptimizerStates:
    """The states of the optimizer, which are equal on all contexts.

    Parameters
    ----------
    updaters : sequence of Updater
        MXNet's updaters, one for each context.
    params : sequence of Parameter
        The trainer's parameters.
    """

    def __init__(self, updaters: Sequence[Updater], params: Sequence[Parameter]) -> None:
        self._updaters, self._params = updaters, params

    def pickled(self) -> bytes:
        """The states and the optimizer, pickled as by gluon.Trainer.save_states."""
        return self._updaters[0].get_states(dump_optimizer=True)

    def load(self, pickled: bytes, numbers: Dict[int, int]) -> None:
        """Restore a result of `pickled`, on all contexts.

        Parameters
        ----------
        pickled : bytes
        numbers : dict
            Maps a parameter's index in the checkpoint to its index here.
        """
        first = self._updaters[0]
        for updater in self._updaters:
            updater.set_states(pickled)
            updater.states = _renumbered(updater.states, numbers)
            updater.states_synced = dict.fromkeys(updater.states, False)
            updater.optimizer = first.optimizer
        self._load_counts(first.optimizer, numbers)
        first.optimizer.param_dict = dict(enumerate(self._params))

    def _load_counts(self, optimizer: Optimizer, numbers: Dict[int, int]) -> None:
        """Give the saved counts of updates to each device of the parameters.

        MXNet's optimizer counts the updates of each device id by itself, and the trainer that saved
        may have had other device ids.
        """
        saved = _highest(optimizer._all_index_update_counts.values())
        counts = _renumbered(saved, numbers)
        devices = {context.device_id for param in self._params for context in param.list_ctx()}
        optimizer._all_index_update_counts = {device: dict(counts) for device in devices}
        optimizer._set_current_context(min(devices))


def read_stock(fname: str, parameters: int, mu: Optional[float]) -> Tuple[bytes, Dict[int, int]]:
    """The optimizer's states in a file of gluon.Trainer, and the indices of the parameters.

    Parameters
    ----------
    fname : str
    parameters : int
        The number of the trainer's parameters.
    mu : float, optional
        The momentum that compression applies instead of the optimizer.

    Raises
    ------
    ValueError
        gluon.Trainer did not write the file, or it was saved with other parameters or another
        momentum.
    """
    data = Path(fname).read_bytes()
    try:
        states, optimizer = pickle.loads(data)
        indices = list(states)
    except Exception as error:
        raise ValueError(
            f"'{fname}' is not a file of DistributedTrainer.save_states, nor of gluon.Trainer's: "
            f"{error}"
        ) from error
    for index in indices:
        if index not in range(parameters):
            raise ValueError(
                f"'{fname}' does not fit: it has states of parameter {index}, but there are "
                f"{parameters} parameters here"
            )
    if mu is not None:
        saved_momentum, _ = momentum_of(optimizer)
        fitting.check(fname, "momentum", saved_momentum, mu)
    return data, {i: i for i in range(parameters)}


def _highest(counts: Iterable[Mapping[int, int]]) -> Dict[int, int]:
    """The highest count of each index: a device that is no longer used has a lower one."""
    highest: Dict[int, int] = {}
    for of_device in counts:
        for index, count in of_device.items():
            highest[index] = max(count, highest.get(index, 0))
    return highest


def _renumbered(values: Dict[int, Any], numbers: Dict[int, int]) -> Dict[int, Any]:
    return {numbers[i]: value for i, value in values.items() if i in numbers}

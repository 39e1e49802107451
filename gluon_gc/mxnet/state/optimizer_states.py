"""The states of a trainer's optimizer, in a checkpoint and for new workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import mxnet as mx
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer, Updater

from ...state import fitting
from ..exchange.exchange import Exchange
from ..exchange.gradient import legacy
from ..trainer.momentum import momentum_of
from ..trainer.optimizer_facts import progress_of


class OptimizerStates:
    """The states of the optimizer, which are equal on all contexts."""

    def __init__(self, updaters: Sequence[Updater], params: Sequence[Parameter]) -> None:
        self._updaters, self._params = updaters, params  # there is an updater for each context

    def pickled(self) -> bytes:
        """The states and the optimizer, pickled as by gluon.Trainer.save_states."""
        return self._updaters[0].get_states(dump_optimizer=True)

    def load(self, pickled: bytes, numbers: dict[int, int]) -> None:
        """Restore a result of `pickled`, on all contexts.

        `numbers` maps a parameter's index in the checkpoint to its index here.
        """
        first = self._updaters[0]
        for updater in self._updaters:
            updater.set_states(pickled)
            updater.states = _renumbered(updater.states, numbers)
            updater.states_synced = dict.fromkeys(updater.states, False)
            updater.optimizer = first.optimizer
        self._set_counts(first.optimizer, _renumbered(_counts(first.optimizer), numbers))
        first.optimizer.param_dict = dict(enumerate(self._params))

    def start_equal(self, exchange: Exchange, root_rank: int, steps: int) -> int:
        """Copy the states of worker `root_rank` if workers have made different numbers of updates.

        All workers call this in their first step. Returns the number of steps of `root_rank`;
        `steps` is this worker's.
        """
        if exchange.num_workers == 1:
            return steps
        optimizer = self._updaters[0].optimizer
        counts = _counts(optimizer)
        done = [steps, *(counts.get(i, 0) for i in range(len(self._params)))]
        updates = {"updates": [*done, *progress_of(optimizer).values()]}
        if exchange.agrees("step", [("the optimizer", updates)]):
            return steps
        array = mx.nd.array(done, dtype="int32")
        exchange.broadcast([array], root_rank)
        copy_progress(optimizer, exchange, root_rank)
        steps, *numbers = array.asnumpy().tolist()
        counts = {i: count for i, count in enumerate(numbers) if count}
        self._set_counts(optimizer, counts)
        for context, updater in enumerate(self._updaters):
            updater.states = {i: self._state(updater, context, i) for i in counts}
            updater.states_synced = dict.fromkeys(counts, False)
        copies = [
            (f"the optimizer's state of {self._params[i].name}", arrays)
            for i in counts
            for arrays in zip(*(arrays_of(updater.states[i]) for updater in self._updaters))
        ]
        exchange.broadcast_copies(copies, root_rank)
        return steps

    def _state(self, updater: Updater, context: int, index: int) -> Any:
        """The state of a parameter on a context; a new one if there was no update."""
        if index in updater.states:
            return updater.states[index]
        weight = legacy(self._params[index].list_data())[context]
        return updater.optimizer.create_state_multi_precision(index, weight)

    def _set_counts(self, optimizer: Optimizer, counts: Mapping[int, int]) -> None:
        """Give these counts of updates to each device of the parameters.

        MXNet's optimizer counts the updates of each device id by itself, and the trainer that saved
        may have had other device ids.
        """
        devices = {context.device_id for param in self._params for context in param.list_ctx()}
        optimizer._all_index_update_counts = {device: dict(counts) for device in devices}
        optimizer._set_current_context(min(devices))


def copy_progress(optimizer: Optimizer, exchange: Exchange, root_rank: int) -> None:
    """Overwrite the numbers of `progress_of` with those of worker `root_rank`."""
    own = progress_of(optimizer)
    array = mx.nd.array(list(own.values()), dtype="float64")
    exchange.broadcast([array], root_rank, ["the optimizer's progress"])
    for (name, value), number in zip(own.items(), array.asnumpy().tolist()):
        setattr(optimizer, name, type(value)(number))


def read_stock(fname: str, parameters: int, mu: float | None) -> tuple[bytes, dict[int, int]]:
    """The optimizer's states in a file of gluon.Trainer, and the indices of the parameters.

    `parameters` is the number of the trainer's parameters, and `mu` the momentum that compression
    applies instead of the optimizer. Raise ValueError if the file does not fit.
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


def _counts(optimizer: Optimizer) -> dict[int, int]:
    """The highest count of each index: a device that is no longer used has a lower one."""
    highest: dict[int, int] = {}
    for of_device in optimizer._all_index_update_counts.values():
        for index, count in of_device.items():
            highest[index] = max(count, highest.get(index, 0))
    return highest


def arrays_of(state: Any) -> Iterator[NDArray]:
    """The arrays in the state of a parameter, which may be a tuple of states."""
    if isinstance(state, NDArray):
        yield state
    elif isinstance(state, (tuple, list)):
        for part in state:
            yield from arrays_of(part)


def _renumbered(values: dict[int, Any], numbers: dict[int, int]) -> dict[int, Any]:
    return {numbers[i]: value for i, value in values.items() if i in numbers}

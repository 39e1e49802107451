"""What `DistributedTrainer.save_states` saves, and `load_states` loads."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Sequence, Set, Union

import numpy as np
from mxnet.ndarray import NDArray

from .. import checkpoint
from ..checkpoint import LOCAL, OF_ALL, Place, fitting
from ..checkpoint.cutting import Arrays
from ..log import logger
from . import carried
from .momentum import momentum_of

if TYPE_CHECKING:
    from .trainer import DistributedTrainer

Files = Union[str, Sequence[str]]


class _Found(NamedTuple):
    """What was found to go on from, all of it checked.

    Parameters
    ----------
    described : str
        What must be alike on all workers.
    optimizer : bytes
        As pickled.
    numbers : dict
        By the number of a parameter in the file its number in the trainer.
    arrays : dict
        By what the store calls tensors; those of the trainer and of its algorithm by the number of
        the parameter.
    steps : int
    learning_rates : dict
        By the number of the parameter.
    """

    described: str
    optimizer: bytes
    numbers: Dict[int, int]
    arrays: Arrays
    steps: int
    learning_rates: Dict[int, float]


def save(trainer: DistributedTrainer, fname: str) -> None:
    """Write the optimizer's states, residuals and momentum; see `DistributedTrainer`."""
    indices = trainer._declare_all("save_states")
    names = trainer._names(indices)
    lanes = {tensor.name: lane for lane, tensor in trainer._traveling().items()}
    algorithm = trainer._algorithm
    own = algorithm.states.arrays() if algorithm is not None else _of_momentum(trainer)

    def in_file(place: Place) -> Place:
        number, kind = lanes[place.tensor]
        return place._replace(tensor=number, what=f"{kind}/{place.what}" if kind else place.what)

    layout = {
        **{
            in_file(place): of_array
            for place, of_array in carried.layout(trainer._store, names).items()
        },
        **{place: (array.shape, np.dtype(array.dtype).name) for place, array in own.items()},
    }
    of_codecs = ((in_file(place), array) for place, array in carried.state(trainer._store, names))
    of_trainer = ((place, _as_numpy(array)) for place, array in own.items())
    header = {**_described(trainer, indices), "steps": trainer._steps}
    optimizer = trainer._updaters[0].get_states(dump_optimizer=True)
    arrays = itertools.chain(of_codecs, of_trainer)
    checkpoint.write(fname, header, layout, arrays, optimizer)


def load(trainer: DistributedTrainer, fname: Files, strict: bool = True) -> None:
    """Go on from what `save` wrote, once all of it was checked; see `DistributedTrainer`."""
    _recall(trainer, fname)
    indices = trainer._declare_all("load_states")
    agree = partial(trainer._store.agree, "load_states")
    try:
        found = _find(trainer, fname, strict, indices)
    except (OSError, TypeError, ValueError):
        with contextlib.suppress(RuntimeError):  # this error says more
            agree([("load_states", {"file": "that it refuses"})])
        raise
    agree([("load_states", {"file": found.described})])
    _set_optimizer(trainer, found)
    own = {place: a for place, a in found.arrays.items() if place.node in (OF_ALL, LOCAL)}
    of_codecs = {place: array for place, array in found.arrays.items() if place not in own}
    carried.load(trainer._store, trainer._names(indices), of_codecs)
    if trainer._algorithm is not None:
        trainer._algorithm.states.load(own, found.steps)
    if trainer._momentum is not None:
        trainer._momentum.load_state(
            {(place.tensor, *map(int, place.what.split("/")[1:])): a for place, a in own.items()}
        )
    trainer._learning_rates.last, trainer._steps = found.learning_rates, found.steps


def _recall(trainer: DistributedTrainer, fname: Files) -> None:
    """Go on with the compressors that "auto" chose, not with what it would choose now."""
    several = not isinstance(fname, (str, os.PathLike))
    with contextlib.suppress(LookupError, OSError, TypeError, ValueError):  # `_find` will say it
        header = checkpoint.header(str(fname[0] if several else fname))
        params = [trainer._overrides.get(i, trainer._compression) for i in trainer._last_first]
        names = {i: trainer._params[i].name for i in trainer._last_first}
        trainer._automatic.recall(header["parameters"], names, dict(zip(names, params)))


def _find(
    trainer: DistributedTrainer, fname: Files, strict: bool, indices: Sequence[int]
) -> _Found:
    """What to go on from."""
    several = not isinstance(fname, (str, os.PathLike))
    if several and strict:
        raise ValueError("a list of files needs strict=False")
    if not several and checkpoint.is_pickle(fname):
        return _of_stock(trainer, str(fname))
    here = fitting.as_read(_described(trainer, indices))
    files = [(str(name), checkpoint.read(name)) for name in (fname if several else [fname])]
    if several:
        files = fitting.in_order_of_ranks(files)
        if len(files) == here["world_size"]:
            files = [files[here["rank"]]]
        else:
            here.update(world_size=len(files))
    arrays = []
    for name, states in files:
        if len(files) > 1:
            here["rank"] = states.header["rank"]
        for key in ("world_size", "rank", "momentum"):
            fitting.check(name, key, states.header[key], here[key])
        fitting.check_algorithm(name, states.header.get("algorithm"), here["algorithm"], strict)
        there = states.header["parameters"]
        numbers = fitting.numbers_of_parameters(name, there, here["parameters"], strict)
        arrays.append(_renamed(trainer, states.arrays, numbers))
    here_too = set(numbers.values())
    loaded = {tensor.name for (i, _), tensor in trainer._traveling().items() if i in here_too}
    for (name, _), of_worker in zip(files, arrays):
        _check_arrays(trainer, name, "worker", of_worker, loaded, strict)
        if trainer._algorithm is not None:
            trainer._algorithm.states.check(name, of_worker, strict)
    (name, _), chosen = files[0], arrays[0]
    if len(files) > 1:
        before = {i: there[number]["senders"] for number, i in numbers.items()}
        chosen = fitting.shared_out(arrays, _shares(trainer, before), trainer._store.rank == 0)
    number = trainer._store.rank % len(files)  # of the worker whose local arrays this one gets
    chosen.update((place, a) for place, a in arrays[number].items() if place.node == LOCAL)
    if not trainer._store.spreads_aggregators:
        _check_arrays(trainer, name, "aggregator", chosen, loaded, strict)
    states = files[number][1]
    header = states.header
    return _Found(
        f"of step {header['steps']} of {header['world_size']} workers",
        states.optimizer,
        numbers,
        chosen,
        header["steps"],
        _learning_rates(header, numbers),
    )


def _learning_rates(header: Dict[str, Any], numbers: Dict[int, int]) -> Dict[int, float]:
    """The learning rates of the trainer's parameters when their gradients were last exchanged."""
    rates = {i: header["parameters"][number]["learning_rate"] for number, i in numbers.items()}
    return {i: rate for i, rate in rates.items() if rate is not None}


def _renamed(trainer: DistributedTrainer, arrays: Arrays, numbers: Dict[int, int]) -> Arrays:
    """The arrays of a file, as `_Found` has them; without those that are of no use here."""
    renamed, tensors = {}, trainer._traveling()
    for place, array in arrays.items():
        number = numbers.get(place.tensor)
        kind, _, what = place.what.rpartition("/")
        if place.node in (OF_ALL, LOCAL) and number is not None:
            renamed[place._replace(tensor=number)] = array
        elif (number, kind) in tensors:
            renamed[place._replace(tensor=tensors[number, kind].name, what=what)] = array
    return renamed


def _check_arrays(
    trainer: DistributedTrainer,
    name: str,
    node: str,
    arrays: Arrays,
    loaded: Set[str],
    strict: bool,
) -> None:
    """Raise ValueError unless a file has what a node is to carry over for these tensors."""
    there = {place: array for place, array in arrays.items() if place.node == node}
    layout = carried.layout(trainer._store, loaded)
    here = {place: of_array for place, of_array in layout.items() if place.node == node}
    called = {t.name: trainer._params[i].name for (i, _), t in trainer._traveling().items()}
    fitting.check_arrays(name, there, here, called, strict)


def _shares(trainer: DistributedTrainer, before: Dict[int, Any]) -> Dict[str, fitting.Share]:
    """Of each tensor, which share this worker gets, if there were so many residuals before."""
    places = carried.places(trainer._store)
    shares = {}
    for (i, _), tensor in trainer._traveling().items():
        if tensor.name in places and before.get(i):
            number, now = places[tensor.name]
            alike = tensor.params.compressor.traits.draws_alike
            shares[tensor.name] = fitting.Share(before[i], now, number, alike)
    return shares


def _of_stock(trainer: DistributedTrainer, fname: str) -> _Found:
    """What a file of gluon.Trainer has: its optimizer's states."""
    data = Path(fname).read_bytes()
    try:
        states, optimizer = pickle.loads(data)
        indices = list(states)
    except Exception as error:
        raise ValueError(
            f"'{fname}' is not a file of DistributedTrainer.save_states, nor of gluon.Trainer's: "
            f"{error}"
        ) from error
    number = len(trainer._params)
    for index in indices:
        if index not in range(number):
            raise ValueError(
                f"'{fname}' does not fit: it has states of parameter {index}, but there are "
                f"{number} parameters here"
            )
    if trainer._momentum is not None:
        mu, _ = momentum_of(optimizer)
        fitting.check(fname, "momentum", mu, trainer._momentum.mu)
    logger.warning(
        "'%s' is one of gluon.Trainer: the optimizer's states are loaded, but residuals and the "
        "momentum of compression start from zero",
        fname,
    )
    return _Found("of gluon.Trainer", data, {i: i for i in range(number)}, {}, 0, {})


def _set_optimizer(trainer: DistributedTrainer, found: _Found) -> None:
    """Let the optimizer go on from its states."""
    numbers = found.numbers
    for updater in trainer._updaters:
        updater.set_states(found.optimizer)
        updater.states = _renumbered(updater.states, numbers)
        updater.states_synced = dict.fromkeys(updater.states, False)
        updater.optimizer = trainer._updaters[0].optimizer
    optimizer = trainer._optimizer = trainer._updaters[0].optimizer
    for counts in optimizer._all_index_update_counts.values():
        renumbered = _renumbered(counts, numbers)
        counts.clear()
        counts.update(renumbered)
    optimizer.param_dict = dict(enumerate(trainer._params))


def _renumbered(of_parameters: Dict[int, Any], numbers: Dict[int, int]) -> Dict[int, Any]:
    return {numbers[i]: value for i, value in of_parameters.items() if i in numbers}


def _of_momentum(trainer: DistributedTrainer) -> Arrays:
    """The momentum that the trainer applies by itself: a gradient's, or what weight decay has."""
    if trainer._momentum is None:
        return {}
    return {
        Place(index, OF_ALL, "/".join(["momentum", *map(str, context)])): array
        for (index, *context), array in trainer._momentum.state().items()
    }


def _as_numpy(array: Union[np.ndarray, NDArray]) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.asnumpy()


def _described(trainer: DistributedTrainer, indices: Sequence[int]) -> Dict[str, Any]:
    """What a file must have alike to be loaded, but for the names of parameters.

    `indices` are those of the parameters that have gradients.
    """
    places = carried.places(trainer._store)
    traveling = {i: tensor for (i, _), tensor in trainer._traveling().items() if i in set(indices)}
    tensors = [traveling.get(i) for i in range(len(trainer._params))]
    senders = {i: 0 for i in range(len(trainer._params))}
    for (i, _), tensor in trainer._traveling().items():
        if tensor.name in places:
            senders[i] = places[tensor.name][1]
    return {
        "world_size": trainer._store.num_workers,
        "rank": trainer._store.rank,
        "momentum": trainer._momentum and trainer._momentum.mu,
        "algorithm": trainer._algorithm and trainer._algorithm.described,
        "parameters": [
            {
                "name": param.name,
                "shape": param.shape,
                "dtype": np.dtype(param.dtype).name,
                "compression": tensor.params.identity() if tensor else None,
                "senders": senders[i],
                "learning_rate": trainer._learning_rates.last.get(i),
            }
            for i, (param, tensor) in enumerate(zip(trainer._params, tensors))
        ],
    }

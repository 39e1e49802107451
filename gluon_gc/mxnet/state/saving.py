"""Saves and loads the checkpoints of `DistributedTrainer.save_states` and `load_states`."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Set, Tuple, Union

import numpy as np
from mxnet.gluon import Parameter

from ... import checkpoint
from ...algorithms.driver import undivided
from ...checkpoint import LOCAL, OF_ALL, Place, fitting, matching
from ...checkpoint.cutting import Arrays
from ...checkpoint.loading import if_all_can
from ...log import logger
from ..trainer.averaging import Averaging
from . import tensor_states
from .optimizer_states import OptimizerStates, read_stock

Files = Union[str, Sequence[str]]

_REMEDY = "pass the files of all workers that saved, and strict=False"


@dataclass(frozen=True)
class Saved:
    """The parts of a trainer that a checkpoint saves.

    Parameters
    ----------
    averaging : Averaging
    params : sequence of Parameter
        The trainer's parameters.
    optimizer : OptimizerStates
    """

    averaging: Averaging
    params: Sequence[Parameter]
    optimizer: OptimizerStates

    def header(self) -> Dict[str, Any]:
        """Facts that must be the same in a file and in the trainer that loads it.

        Only the names and positions of parameters, `senders` and `learning_rate` may differ.
        """
        averaging, exchange = self.averaging, self.averaging.exchange
        places = tensor_states.places(exchange)
        senders = dict.fromkeys(range(len(self.params)), 0)
        identities: Dict[int, Any] = {}
        for (i, _), tensor in averaging.tensors.items():
            if tensor.name in places:
                senders[i] = places[tensor.name][1]
            identities[i] = tensor.params.identity()
        return {
            "world_size": exchange.num_workers,
            "rank": exchange.rank,
            "momentum": averaging.mu,
            "algorithm": averaging.described,
            "parameters": [
                {
                    **named,
                    "compression": identities.get(i),
                    "senders": senders[i],
                    "learning_rate": averaging.learning_rates.last.get(i),
                }
                for i, named in enumerate(averaging.named_parameters())
            ],
        }


@dataclass(frozen=True)
class _Found:
    """A checkpoint that is checked and ready to be loaded.

    Parameters
    ----------
    described : str
        Its step and number of workers, in words. It must be the same on all workers.
    optimizer : bytes
        The optimizer's states, pickled.
    numbers : dict
        Maps a parameter's index in the file to its index in the trainer.
    arrays : dict
        The exchange's arrays by tensor name, and those of `Averaging` by parameter index.
    steps : int
    learning_rates : dict
        By parameter index.
    """

    described: str
    optimizer: bytes
    numbers: Dict[int, int]
    arrays: Arrays
    steps: int
    learning_rates: Dict[int, float]


def save(saved: Saved, fname: str) -> None:
    """Write the optimizer's states, residuals and momentum; see `DistributedTrainer`."""
    averaging = saved.averaging
    exchange, names = averaging.exchange, averaging.names()
    by_name = {tensor.name: key for key, tensor in averaging.tensors.items()}
    own = averaging.arrays()

    def in_file(place: Place) -> Place:
        number, kind = by_name[place.tensor]
        return place._replace(tensor=number, what=f"{kind}/{place.what}" if kind else place.what)

    exchange_layout = tensor_states.layout(exchange, names)
    layout = {in_file(place): shape_and_dtype for place, shape_and_dtype in exchange_layout.items()}
    layout.update((p, (array.shape, np.dtype(array.dtype).name)) for p, array in own.items())
    arrays = itertools.chain(
        ((in_file(place), array) for place, array in tensor_states.state(exchange, names)),
        ((place, _as_numpy(array)) for place, array in own.items()),
    )
    header = {**saved.header(), "steps": averaging.steps}
    checkpoint.write(fname, header, layout, arrays, saved.optimizer.pickled())


def header_of(fname: Files) -> Dict[str, Any]:
    """The header of a file, with the choices of "auto".

    It is empty if the file cannot be read; `load` then reports the error.
    """
    several = not isinstance(fname, (str, os.PathLike))
    with contextlib.suppress(LookupError, OSError, TypeError, ValueError):
        return checkpoint.header(str(fname[0] if several else fname))
    return {}


def load(saved: Saved, fname: Files, strict: bool = True) -> None:
    """Check everything that `save` wrote, then restore it; see `DistributedTrainer`."""
    averaging, exchange = saved.averaging, saved.averaging.exchange
    found = if_all_can(
        lambda facts: exchange.agree("load_states", facts),
        call="load_states",
        noun="file",
        prepare=lambda: _find(saved, fname, strict),
        facts=lambda found: [("load_states", {"file": found.described})],
    )
    saved.optimizer.load(found.optimizer, found.numbers)
    own = {place: a for place, a in found.arrays.items() if place.node in (OF_ALL, LOCAL)}
    exchange_arrays = {place: array for place, array in found.arrays.items() if place not in own}
    tensor_states.load(exchange, averaging.names(), exchange_arrays)
    averaging.load(own, found.steps, found.learning_rates)


def _find(saved: Saved, fname: Files, strict: bool) -> _Found:
    """The checkpoint in this worker's file, or in the files of all workers."""
    averaging, exchange = saved.averaging, saved.averaging.exchange
    several = not isinstance(fname, (str, os.PathLike))
    if several and strict:
        raise ValueError("a list of files needs strict=False")
    if not several and checkpoint.is_pickle(fname):
        return _of_stock(saved, str(fname))
    here = fitting.as_read(saved.header())
    files = [(str(name), checkpoint.read(name)) for name in (fname if several else [fname])]
    if several:
        files = fitting.in_order_of_ranks(files)
    fitting.check_ranks(files, several, here["world_size"], here["rank"], _REMEDY)
    arrays = []
    for name, states in files:
        fitting.check_algorithm(name, states.header.get("algorithm"), here["algorithm"], strict)
        there = states.header["parameters"]
        numbers = matching.numbers_of_parameters(name, there, here["parameters"], strict)
        # The momentum also differs if the compressor does.
        fitting.check(name, "momentum", states.header["momentum"], here["momentum"])
        arrays.append(_renamed(averaging, states.arrays, numbers))
    loaded = averaging.names({i for n, i in numbers.items() if there[n]["compression"] is not None})
    for (name, _), file_arrays in zip(files, arrays):
        _check_arrays(saved, name, "worker", file_arrays, loaded, strict)
        averaging.check(name, file_arrays, strict)
    before = {i: there[number]["senders"] for number, i in numbers.items()}
    number = exchange.rank % len(files)  # the file whose local arrays this worker gets
    name, states = files[number]
    shares = _shares(averaging, before, arrays[0])
    called = _called(saved)
    for tensor, share in () if several else shares.items():
        what = f"number of residuals of '{called[tensor]}'"
        fitting.check(name, what, share.before, share.now, _REMEDY)
    others = several and len(files) != here["world_size"]
    if others or any(share.before != share.now for share in shares.values()):
        chosen_arrays = fitting.shared_out(arrays, shares)
        local = {place: a for place, a in arrays[number].items() if place.node == LOCAL}
        chosen_arrays.update(local)
    else:
        own = arrays[number].items()
        chosen_arrays = {place: array for place, array in own if place.node != "aggregator"}
    if others:
        chosen_arrays.update(averaging.regrouped(arrays))
    if exchange.rank == 0 or (exchange.spreads_aggregators and not several):
        chosen_arrays.update(fitting.aggregators(arrays))
    if not exchange.spreads_aggregators:
        # Not strict: files may lack a tensor, but not the aggregator of a tensor that they have.
        needed = loaded if strict else loaded & shares.keys()
        aggregated = {place: a for place, a in chosen_arrays.items() if place.tensor in needed}
        _check_arrays(saved, name, "aggregator", aggregated, needed, strict=True)
    header = states.header
    return _Found(
        f"of step {header['steps']} of {header['world_size']} workers",
        states.optimizer,
        numbers,
        chosen_arrays,
        header["steps"],
        _learning_rates(header, numbers),
    )


def _learning_rates(header: Dict[str, Any], numbers: Dict[int, int]) -> Dict[int, float]:
    """The learning rates of the trainer's parameters at their last exchange."""
    rates = {i: header["parameters"][number]["learning_rate"] for number, i in numbers.items()}
    return {i: rate for i, rate in rates.items() if rate is not None}


def _renamed(averaging: Averaging, arrays: Arrays, numbers: Dict[int, int]) -> Arrays:
    """The arrays of a file with the keys of `_Found`, without arrays that are not needed here."""
    renamed = {}
    tensors = {(i, undivided(kind)): tensor for (i, kind), tensor in averaging.tensors.items()}
    for place, array in arrays.items():
        number = numbers.get(place.tensor)
        kind, _, what = place.what.rpartition("/")
        if place.node in (OF_ALL, LOCAL) and number is not None:
            renamed[place._replace(tensor=number)] = array
        elif (number, undivided(kind)) in tensors:
            tensor = tensors[number, undivided(kind)]
            renamed[place._replace(tensor=tensor.name, what=what)] = array
    return renamed


def _check_arrays(
    saved: Saved, name: str, node: str, arrays: Arrays, loaded: Set[str], strict: bool
) -> None:
    """Raise ValueError unless a file has the states that a node keeps of these tensors."""
    there = {place: array for place, array in arrays.items() if place.node == node}
    layout = tensor_states.layout(saved.averaging.exchange, loaded)
    here = {
        place: shape_and_dtype for place, shape_and_dtype in layout.items() if place.node == node
    }
    fitting.check_arrays(name, there, here, _called(saved), strict, _REMEDY)


def _called(saved: Saved) -> Dict[str, str]:
    """The name of each parameter, by the name of its tensor in the store."""
    return {t.name: saved.params[i].name for (i, _), t in saved.averaging.tensors.items()}


def _shares(
    averaging: Averaging, before: Dict[int, Any], arrays: Arrays
) -> Dict[str, fitting.Share]:
    """For each tensor with worker's arrays in a file, this worker's share of all files' arrays."""
    places: Dict[str, Tuple[int, int]] = tensor_states.places(averaging.exchange)
    in_file = {place.tensor for place in arrays if place.node == "worker"}
    shares = {}
    for (i, _), tensor in averaging.tensors.items():
        if tensor.name in places and tensor.name in in_file and before.get(i):
            number, now = places[tensor.name]
            draws_alike = tensor.params.compressor.traits.draws_alike
            shares[tensor.name] = fitting.Share(before[i], now, number, draws_alike)
    return shares


def _of_stock(saved: Saved, fname: str) -> _Found:
    """The checkpoint in a file of gluon.Trainer, which has only the optimizer's states."""
    data, numbers = read_stock(fname, len(saved.params), saved.averaging.mu)
    logger.warning(
        "'%s' was saved by gluon.Trainer: the optimizer's states are loaded, but the residuals and "
        "the momentum of compression start from zero",
        fname,
    )
    return _Found("of gluon.Trainer", data, numbers, {}, 0, {})


def _as_numpy(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.asnumpy()

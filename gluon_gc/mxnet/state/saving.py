"""Saves and loads the checkpoints of `DistributedTrainer.save_states` and `load_states`."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from typing import Any, Sequence, Union

import numpy as np

from ... import state
from ...algorithms import in_full
from ...algorithms.driver import undivided
from ...log import logger
from ...state import LOCAL, OF_ALL, Arrays, Key, States, fitting
from ...state.division import Share, arrays_of_worker
from ..trainer.averaging import Averaging
from . import tensor_states
from .optimizer_states import OptimizerStates, read_stock

Files = Union[str, Sequence[str]]

_REMEDY = "pass the files of all workers that saved, and strict=False"


@dataclass(frozen=True)
class _Found:
    """A checkpoint that is checked and ready to be loaded."""

    described: str  # its step and number of workers; the same on all workers
    optimizer: bytes  # the optimizer's states, pickled
    numbers: dict[int, int]  # from a parameter's index in the file to its index in the trainer
    arrays: Arrays  # the exchange's by tensor name, those of `Averaging` by parameter index
    steps: int
    learning_rates: dict[int, float]  # by parameter index


def save(averaging: Averaging, optimizer: OptimizerStates, fname: str) -> None:
    """Write the optimizer's states, residuals and momentum; see `DistributedTrainer`."""
    exchange, names = averaging.exchange, averaging.names()
    by_name = {tensor.name: key for key, tensor in averaging.tensors.items()}
    own = averaging.arrays()

    def in_file(key: Key) -> Key:
        number, kind = by_name[key.tensor]
        return key._replace(tensor=number, what=f"{kind}/{key.what}" if kind else key.what)

    exchange_layout = tensor_states.layout(exchange, names)
    layout = {in_file(key): shape_and_dtype for key, shape_and_dtype in exchange_layout.items()}
    layout.update((p, (array.shape, np.dtype(array.dtype).name)) for p, array in own.items())
    arrays = itertools.chain(
        ((in_file(key), array) for key, array in tensor_states.state(exchange, names)),
        ((key, _as_numpy(array)) for key, array in own.items()),
    )
    header = {**_described(averaging), "steps": averaging.steps}
    state.write(fname, header, layout, arrays, optimizer.pickled())


def announce(averaging: Averaging, fname: Files) -> None:
    """Tell the trainer what a checkpoint has, before it declares its tensors.

    If the file cannot be read, that is nothing: `load` then reports the error.
    """
    header: dict[str, Any] = {}
    with contextlib.suppress(LookupError, OSError, TypeError, ValueError):
        header = state.header(str(fname[0] if _is_several(fname) else fname))
    saved = fitting.saved_compressions(header, averaging.named_parameters())
    averaging.expect(saved, header.get("algorithm"))


def load(
    averaging: Averaging, optimizer: OptimizerStates, fname: Files, strict: bool = True
) -> None:
    """Check everything that `save` wrote, then restore it; see `DistributedTrainer`."""
    exchange = averaging.exchange
    found = fitting.if_all_can(
        lambda facts: exchange.agree("load_states", facts),
        call="load_states",
        noun="file",
        prepare=lambda: _find(averaging, fname, strict),
        facts=lambda found: [("load_states", {"file": found.described})],
    )
    optimizer.load(found.optimizer, found.numbers)
    own = {key: a for key, a in found.arrays.items() if key.node in (OF_ALL, LOCAL)}
    exchange_arrays = {key: array for key, array in found.arrays.items() if key not in own}
    tensor_states.load(exchange, averaging.names(), exchange_arrays)
    averaging.load(own, found.steps, found.learning_rates)


def _described(averaging: Averaging) -> dict[str, Any]:
    """Facts that must be the same in a file and in the trainer that loads it.

    Only the names and positions of parameters, `senders` and `learning_rate` may differ.
    """
    exchange, senders = averaging.exchange, tensor_states.senders(averaging.exchange)
    parameters: list[dict[str, Any]] = [
        {**named, "compression": None, "senders": 0} for named in averaging.named_parameters()
    ]
    for (i, _), tensor in averaging.tensors.items():
        if tensor.name in senders:
            parameters[i]["senders"] = senders[tensor.name][1]
        parameters[i]["compression"] = tensor.params.identity()
    for i, parameter in enumerate(parameters):
        parameter["learning_rate"] = averaging.learning_rates.last.get(i)
    return {
        "world_size": exchange.num_workers,
        "rank": exchange.rank,
        "momentum": averaging.mu,
        "algorithm": averaging.described,
        "parameters": parameters,
    }


def _find(averaging: Averaging, fname: Files, strict: bool) -> _Found:
    """The checkpoint in this worker's file, or in the files of all workers."""
    exchange, several = averaging.exchange, _is_several(fname)
    if several and strict:
        raise ValueError("a list of files needs strict=False")
    if not several and state.is_pickle(fname):
        return _of_stock(averaging, str(fname))
    here = fitting.as_read(_described(averaging))
    files = [(str(name), state.read(name)) for name in (fname if several else [fname])]
    files = fitting.by_rank(files, several, here["world_size"], here["rank"], _REMEDY)
    arrays = []
    for name, states in files:
        numbers = _numbers(name, states, here, strict)
        renamed = _renamed(averaging, states.arrays, numbers)
        arrays.append(averaging.in_full(states.header, renamed))
    there = files[-1][1].header["parameters"]
    loaded = averaging.names({i for n, i in numbers.items() if there[n]["compression"] is not None})
    for (name, _), file_arrays in zip(files, arrays):
        _check_arrays(averaging, name, "worker", file_arrays, loaded, strict)
        averaging.check(name, file_arrays, strict)
    name, states = files[exchange.rank % len(files)]  # of the local arrays that this worker gets
    shares = _shares(averaging, {i: there[n]["senders"] for n, i in numbers.items()}, arrays[0])
    for tensor, share in () if several else shares.items():
        what = f"number of residuals of '{_called(averaging)[tensor]}'"
        fitting.check(name, what, share.before, share.now, _REMEDY)
    others = several and len(files) != here["world_size"]
    divided = others or any(share.before != share.now for share in shares.values())
    chosen = arrays_of_worker(arrays, exchange.rank, shares if divided else None)
    if others:
        chosen.update(averaging.regrouped(arrays))
    if exchange.rank != 0 and (several or not exchange.assigns_aggregators):
        chosen = {key: array for key, array in chosen.items() if key.node != "aggregator"}
    if not exchange.assigns_aggregators:
        # Not strict: files may lack a tensor, but not the aggregator of a tensor that they have.
        needed = loaded if strict else loaded & shares.keys()
        aggregated = {key: array for key, array in chosen.items() if key.tensor in needed}
        _check_arrays(averaging, name, "aggregator", aggregated, needed, strict=True)
    header = states.header
    rates = {i: header["parameters"][n]["learning_rate"] for n, i in numbers.items()}
    return _Found(
        f"of step {header['steps']} of {header['world_size']} workers",
        states.optimizer,
        numbers,
        chosen,
        header["steps"],
        {i: rate for i, rate in rates.items() if rate is not None},
    )


def _is_several(fname: Files) -> bool:
    return not isinstance(fname, (str, os.PathLike))


def _numbers(name: str, states: States, here: dict[str, Any], strict: bool) -> dict[int, int]:
    """Check a file's header. Map the numbers of its parameters to those in the trainer."""
    header = states.header
    saved = header.get("algorithm")
    fitting.check_algorithm(name, saved and in_full(saved), here["algorithm"], strict)
    numbers = fitting.numbers_of_parameters(name, header["parameters"], here["parameters"], strict)
    # The momentum also differs if the compressor does.
    fitting.check(name, "momentum", header["momentum"], here["momentum"])
    return numbers


def _renamed(averaging: Averaging, arrays: Arrays, numbers: dict[int, int]) -> Arrays:
    """The arrays of a file with the keys of `_Found`, without arrays that are not needed here."""
    renamed = {}
    tensors = {(i, undivided(kind)): tensor for (i, kind), tensor in averaging.tensors.items()}
    for key, array in arrays.items():
        number = numbers.get(key.tensor)
        kind, _, what = key.what.rpartition("/")
        if key.node in (OF_ALL, LOCAL) and number is not None:
            renamed[key._replace(tensor=number)] = array
        elif (number, undivided(kind)) in tensors:
            tensor = tensors[number, undivided(kind)]
            renamed[key._replace(tensor=tensor.name, what=what)] = array
    return renamed


def _check_arrays(
    averaging: Averaging, name: str, node: str, arrays: Arrays, loaded: set[str], strict: bool
) -> None:
    """Raise ValueError unless a file has the states that a node keeps of these tensors."""
    there = {key: array for key, array in arrays.items() if key.node == node}
    layout = tensor_states.layout(averaging.exchange, loaded)
    here = {key: entry for key, entry in layout.items() if key.node == node}
    fitting.check_arrays(name, there, here, _called(averaging), strict, _REMEDY)


def _called(averaging: Averaging) -> dict[str, str]:
    """The name of each parameter, by the name of its tensor in the store."""
    named = averaging.named_parameters()
    return {tensor.name: named[i]["name"] for (i, _), tensor in averaging.tensors.items()}


def _shares(averaging: Averaging, before: dict[int, Any], arrays: Arrays) -> dict[str, Share]:
    """For each tensor with worker's arrays in a file, this worker's share of all files' arrays."""
    senders: dict[str, tuple[int, int]] = tensor_states.senders(averaging.exchange)
    in_file = {key.tensor for key in arrays if key.node == "worker"}
    shares = {}
    for (i, _), tensor in averaging.tensors.items():
        if tensor.name in senders and tensor.name in in_file and before.get(i):
            number, now = senders[tensor.name]
            draws_alike = tensor.params.compressor.traits.draws_alike
            shares[tensor.name] = Share(before[i], now, number, draws_alike)
    return shares


def _of_stock(averaging: Averaging, fname: str) -> _Found:
    """The checkpoint in a file of gluon.Trainer, which has only the optimizer's states."""
    data, numbers = read_stock(fname, len(averaging.named_parameters()), averaging.mu)
    logger.warning(
        "'%s' was saved by gluon.Trainer: the optimizer's states are loaded, but the residuals and "
        "the momentum of compression start from zero",
        fname,
    )
    return _Found("of gluon.Trainer", data, numbers, {}, 0, {})


def _as_numpy(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.asnumpy()

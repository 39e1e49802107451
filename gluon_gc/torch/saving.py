"""The `state_dict` of a CompressionState, made of plain values and tensors.

    {"format": 1, "rank", "world_size", "machines", "momentum", "steps", "learning_rates",
     "parameters": [{"name", "shape", "dtype", "compression"}, ...],
     "aliases": {NAME: its name in "parameters", ...},
     "arrays": {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...}}

`coder_states` explains the arrays. In addition, the node "trainer" has arrays of the kinds
"momentum" and "weight_decay", which are equal on all workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

import torch

from ..agreement import Facts
from ..checkpoint import States, fitting
from ..checkpoint.cutting import Arrays
from . import coder_states, resharding, state_dicts
from .exchange import Exchange
from .gradients.momentum import Momentum
from .state_dicts import FORMAT, NOUN, Names, StateDict

if TYPE_CHECKING:
    from .gradients.state import CompressionState

_KINDS = {"gradient": "momentum", "weight_decay": "weight_decay"}  # by kind of `Momentum.state`


def state_dict(state: CompressionState) -> Dict[str, Any]:
    """Return this worker's state_dict. Backward may not be under way.

    It is without the exchanges whose averages no optimizer has applied.
    """
    steps = state.gradients
    steps.finish()
    undone, whole = steps.undo.waiting()
    arrays: coder_states.Tensors = {name: {} for name in state.parameters}
    arrays.update(coder_states.packed(state.exchange.chunks, undone))
    for kind, states in state.momentum.state.items() if state.momentum else ():
        for name, tensor in states.items():
            arrays[name][f"trainer.{_KINDS[kind]}.0"] = tensor.clone()
    return {
        "format": FORMAT,
        **_described(state),
        "steps": steps.count - whole,
        "learning_rates": steps.rates.without(undone),
        "arrays": arrays,
    }


def load(
    state: CompressionState, given: Union[StateDict, Sequence[StateDict]], strict: bool
) -> None:
    """Check the result of `state_dict`, and continue from it; see `CompressionState`.

    The workers agree before each part, so that all of them fail if one fails.
    """
    several, steps = not isinstance(given, Mapping), state.gradients
    steps.finish()
    gather = state.exchange.gather_objects
    names = state_dicts.Names(state.parameters, state.aliases)
    workers = state_dicts.if_all_fit(gather, lambda: _read_all(given, names), _facts)
    recalled = [] if steps.count else workers[0].header["parameters"]
    with steps.compression.recalling(recalled):
        arrays = state_dicts.if_all_fit(
            state.exchange.gather_objects, lambda: _fitting(state, workers, several, strict)
        )
    exchange = state.exchange
    resharding.warn(len(workers) if several else exchange.workers, exchange.workers)
    params = state.gradients.compression.params
    chosen = resharding.of_this_worker(exchange, params, arrays, several)
    header = workers[0].header
    if header["momentum"] is not None:
        steps.compression.set_momentum(header["momentum"])  # the unit of dgc's momentum
    apply(exchange, state.momentum, chosen)
    steps.count, steps.rates.last = header["steps"], dict(header["learning_rates"])
    if state.momentum is not None:
        state.momentum.mu = header["momentum"]
    steps.undo.clear()


def _read_all(given: Union[StateDict, Sequence[StateDict]], names: Names) -> List[States]:
    """Return this worker's state_dict, or those of several workers in the order of their ranks."""
    if isinstance(given, Mapping):
        return [_read(given, names)]
    several = [(NOUN, _read(each, names)) for each in given]
    return [states for _, states in fitting.in_order_of_ranks(several)]


def _read(given: StateDict, names: Names) -> States:
    """Return a state_dict in the form of a checkpoint file, with the names here."""
    state_dicts.require_format(given, "parameters", "CompressionState")
    here = names.of(given, [parameter["name"] for parameter in given["parameters"]])
    header = {
        **given,
        "parameters": state_dicts.renamed_parameters(given["parameters"], here),
        "learning_rates": state_dicts.renamed(given["learning_rates"], here),
    }
    arrays = state_dicts.renamed(given["arrays"], here)
    return States(header, coder_states.unpacked(arrays), b"")


def _facts(workers: Sequence[States]) -> Facts:
    """Return facts that must be the same in all workers' state_dicts."""
    header = workers[0].header
    values = {"steps": header["steps"], "files": len(workers)}
    return [
        (f"the {NOUN}", values),
        *(
            (f"parameter {parameter['name']} of the {NOUN}", parameter["compression"])
            for parameter in header["parameters"]
        ),
    ]


def _fitting(
    state: CompressionState, workers: Sequence[States], several: bool, strict: bool
) -> List[Arrays]:
    """Return each state_dict's arrays for the parameters here; ValueError if they do not fit.

    `several`: the state_dicts are those of all workers that saved them. Otherwise there is only
    this worker's.
    """
    resharding.check_workers(state.exchange, workers, several)
    for states in workers:
        _check(state, states, strict)
    return [
        {place: array for place, array in s.arrays.items() if place.tensor in state.parameters}
        for s in workers
    ]


def _described(state: CompressionState) -> Dict[str, Any]:
    """Return the values that a state_dict and the loading state must share."""
    return {
        **state_dicts.described_workers(state.exchange),
        "momentum": state.momentum and state.momentum.mu,
        "parameters": state_dicts.described_parameters(
            state.parameters, state.gradients.compression.params
        ),
        "aliases": dict(state.aliases),
    }


def _check(state: CompressionState, states: States, strict: bool) -> None:
    """Raise ValueError unless a state_dict fits."""
    here = _described(state)
    there = [_without_mu(description) for description in states.header["parameters"]]
    here["parameters"] = [_without_mu(description) for description in here["parameters"]]
    names = state_dicts.check_parameters(there, here["parameters"], strict)
    mu = states.header["momentum"]
    if (mu is None) != (here["momentum"] is None):  # this also differs if the compressor does
        fitting.check(NOUN, "momentum", mu, here["momentum"])
    fitting.check(NOUN, "machines", states.header["machines"], here["machines"])
    if not resharding.has_layout_of_this_worker(state.exchange, states.header):
        return
    found = {place: a for place, a in states.arrays.items() if place.node == "worker"}
    layout = coder_states.worker_layout(state.exchange.chunks)
    expected = {place: entry for place, entry in layout.items() if place.tensor in names}
    fitting.check_arrays(NOUN, found, expected, names, strict)


def _without_mu(description: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a parameter's description with "mu" as a bool: whether there is momentum.

    The value of the momentum may change during training.
    """
    compression = description["compression"]
    return {**description, "compression": {**compression, "mu": compression["mu"] is not None}}


def apply(exchange: Exchange, momentum: Optional[Momentum], arrays: Arrays) -> None:
    """Continue from these arrays. Missing arrays start from zero."""
    coder_states.restore(exchange.chunks, arrays)
    if momentum is not None:
        for kind, saved_as in _KINDS.items():
            momentum.state[kind] = {
                place.tensor: torch.from_numpy(array.copy())
                for place, array in arrays.items()
                if (place.node, place.what) == ("trainer", saved_as)
            }

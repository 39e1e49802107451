"""The `state_dict` of a CompressionState, made of plain values and tensors.

    {"format": 1, "rank", "world_size", "machines", "momentum", "steps", "learning_rates",
     "parameters": [{"name", "shape", "dtype", "compression"}, ...],
     "aliases": {NAME: its name in "parameters", ...},
     "arrays": {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...},
     "entries": ["format", "rank", ..., "arrays/NAME/NODE.KIND.BEGIN", ...]}

`coder_states` explains the arrays. In addition, the node "trainer" has arrays of the kinds
"momentum" and "weight_decay", which are equal on all workers. They are dense, also if the gradient
is sparse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

import torch

from ...auto import selection
from ...exchange.agreement import Facts
from ...exchange.exchange import Lane
from ...state import OF_ALL, Arrays, States, fitting
from ..gradients.momentum import Momentum
from . import coder_states, state_dicts
from .coder_states import Saved
from .state_dicts import FORMAT, NOUN, Names, StateDict

if TYPE_CHECKING:
    from ..gradients.state import CompressionState

_KINDS = {"gradient": "momentum", "weight_decay": "weight_decay"}  # by kind of `Momentum.state`


def state_dict(state: CompressionState) -> dict[str, Any]:
    """Return this worker's state_dict. Backward may not be under way.

    It is without the exchanges whose averages no optimizer has applied.
    """
    steps = state.gradients
    steps.finish()
    undone, whole = steps.undo.waiting()
    arrays: coder_states.Tensors = {name: {} for name in state.parameters}
    arrays.update(coder_states.packed(state.lane.chunks, undone))
    for kind, states in state.momentum.state.items() if state.momentum else ():
        for name, tensor in states.items():
            arrays[name][f"{OF_ALL}.{_KINDS[kind]}.0"] = tensor.clone().to_dense()
    return state_dicts.with_entries(
        {
            "format": FORMAT,
            **_described(state),
            "steps": steps.count - whole,
            "learning_rates": steps.rates.without(undone),
            "arrays": arrays,
        }
    )


def load(state: CompressionState, given: StateDict | Sequence[StateDict], strict: bool) -> None:
    """Check the result of `state_dict`, and continue from it; see `CompressionState`.

    The workers agree before each part, so that all of them fail if one fails.
    """
    steps, compression = state.gradients, state.gradients.compression
    steps.finish()
    exchange, names = state.exchange, Names(state.parameters, state.aliases)
    several = not isinstance(given, Mapping)
    workers = state_dicts.if_all_fit(
        exchange.gather_objects,
        lambda: state_dicts.by_rank(exchange, given, lambda each: _read(each, names, strict)),
        _facts,
    )
    before, header = compression.choices, workers[0].header
    if not steps.count:
        choices = {p["name"]: p["compression"] for p in header["parameters"]}
        compression.choose({**before, **selection.saved_choices(compression.requested, choices)})
    try:
        saved = state_dicts.if_all_fit(
            state.exchange.gather_objects,
            lambda: _fitting(state, workers, several, strict),
        )
    except Exception:
        compression.choose(before)
        raise
    if several:
        state_dicts.warn_if_divided(len(workers), state.exchange.workers)
    chosen = saved.of_this_worker(state.lane, compression.params)
    if header["momentum"] is not None:
        compression.set_momentum(header["momentum"])  # the unit of dgc's momentum
    apply(state.lane, state.momentum, chosen)
    steps.count, steps.rates.last = header["steps"], dict(header["learning_rates"])
    if state.momentum is not None:
        state.momentum.mu = header["momentum"]
    steps.undo.clear()


def _read(given: StateDict, names: Names, strict: bool) -> States:
    """Return a state_dict in the form of a checkpoint file, with the names here."""
    state_dicts.require_format(given, "parameters", "CompressionState")
    if strict:
        state_dicts.require_entries(given)
    here = names.of(given, [parameter["name"] for parameter in given["parameters"]])
    header = {
        **given,
        "parameters": state_dicts.renamed_parameters(given["parameters"], here),
        "learning_rates": state_dicts.renamed(given.get("learning_rates", {}), here),
    }
    arrays = state_dicts.renamed(given.get("arrays", {}), here)
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


def _described(state: CompressionState) -> dict[str, Any]:
    """Return the values that a state_dict and the loading state must share."""
    return {
        **state_dicts.described_workers(state.exchange),
        "momentum": state.momentum and state.momentum.mu,
        "parameters": state_dicts.described_parameters(
            state.parameters, state.gradients.compression.params
        ),
        "aliases": dict(state.aliases),
    }


def _fitting(
    state: CompressionState, workers: Sequence[States], several: bool, strict: bool
) -> Saved:
    """Return the workers' arrays for the parameters here; ValueError if they do not fit."""
    here = _described(state)
    for header in (states.header for states in workers):
        there = _without_mu(header["parameters"])
        names = state_dicts.check_parameters(there, _without_mu(here["parameters"]), strict)
        # The momentum also differs if the compressor does.
        if (header["momentum"] is None) != (here["momentum"] is None):
            fitting.check(NOUN, "momentum", header["momentum"], here["momentum"])
    arrays = [
        {key: array for key, array in states.arrays.items() if key.tensor in state.parameters}
        for states in workers
    ]
    saved = Saved(arrays, several, state_dicts.machines_of(header))
    saved.check(state.lane, state.gradients.compression.params, names, strict)
    return saved


def _without_mu(parameters: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return descriptions of parameters with "mu" as a bool: whether there is momentum.

    The value of the momentum may change during training.
    """
    return [
        {**p, "compression": {**p["compression"], "mu": p["compression"]["mu"] is not None}}
        for p in parameters
    ]


def apply(lane: Lane, momentum: Momentum | None, arrays: Arrays) -> None:
    """Continue from these arrays. Missing arrays start from zero."""
    coder_states.restore(lane.chunks, arrays)
    if momentum is not None:
        for kind, saved_as in _KINDS.items():
            momentum.state[kind] = {
                key.tensor: torch.from_numpy(array.copy())
                for key, array in arrays.items()
                if (key.node, key.what) == (OF_ALL, saved_as)
            }

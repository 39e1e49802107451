"""The `state_dict` of an AlgorithmState, made of plain values and tensors.

    {"format": 1, "rank", "world_size", "machines", "algorithm": {"name", OPTION...}, "steps",
     "tensors": [{"name", "shape", "dtype", "compression"}, ...],
     "aliases": {NAME: its name in "tensors", ...},
     "state": {KIND: {NAME: tensor, ...}, ...},
     "residuals": {ROUND: {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...}, ...},
     "weights": {NAME: tensor, ...},
     "optimizer": its state_dict,
     "entries": ["format", ..., "state/KIND/NAME", ...]}

KIND is a kind of the algorithm's state, and ROUND a kind of its rounds. `coder_states` explains the
residuals. In state_dicts of earlier versions, a weight that equals a tensor of the state is the
same tensor.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from torch.optim import Optimizer

from ...algorithms import in_full
from ...algorithms.base import State
from ...algorithms.driver import is_arriving, undivided
from ...algorithms.requirements import digest
from ...auto.algorithm import Decision
from ...exchange.agreement import Facts
from ...state import Arrays, States, fitting
from ..gradients.optimizer_hooks import param_groups
from ..transport.staging import is_sharded, sharded_like
from . import coder_states, state_dicts
from .coder_states import Saved
from .state_dicts import FORMAT, NOUN, StateDict

if TYPE_CHECKING:
    from ...exchange.exchange import Lane
    from ..algorithms.state import AlgorithmState

_OWNER = "a DistributedOptimizer with an algorithm"


def state_dict(state: AlgorithmState) -> dict[str, Any]:
    """Return this worker's checkpoint."""
    kinds = {
        kind: {name: array.detach().clone() for name, array in arrays.items()}
        for kind, arrays in state.driver.saved_state().items()
    }
    lanes = state.rounds.lanes.items()
    return state_dicts.with_entries(
        {
            "format": FORMAT,
            **_described(state),
            "algorithm": dict(state.options),
            "steps": state.steps,
            "state": kinds,
            "residuals": {kind: coder_states.packed(lane.chunks) for kind, lane in lanes},
            "weights": {name: x.clone() for name, x in state.rounds.parameters().items()},
            "optimizer": _of_optimizer(state.optimizer),
        }
    )


def _of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return a copy of an optimizer's state_dict, with this worker's parts of sharded tensors."""
    saved = copy.deepcopy(optimizer.state_dict())
    for values in saved["state"].values():
        values.update({k: v.to_local() for k, v in values.items() if is_sharded(v)})
    return saved


def _load_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Invert `_of_optimizer`. A tensor in the shape of a shard is sharded like its parameter."""
    loaded = copy.deepcopy(saved)
    parameters = (p for group in param_groups(optimizer) for p in group["params"])
    for number, parameter in enumerate(parameters):
        values = loaded["state"].get(number, {}) if is_sharded(parameter) else {}
        for key, value in values.items():
            shape = getattr(value, "shape", ())
            if shape and shape == parameter.to_local().shape:
                values[key] = sharded_like(value, parameter)
    optimizer.load_state_dict(loaded)


def load(state: AlgorithmState, given: StateDict | Sequence[StateDict]) -> None:
    """Continue from this worker's checkpoint, or from those of all former workers.

    The workers first check their checkpoints.
    """
    several, exchange = not isinstance(given, Mapping), state.rounds.exchange
    all_given = given if several else [given]
    listed = [_renamed(state, each) for each in all_given]
    choice = _choice(state, listed)
    if choice is not None:
        state.take(choice)
    try:
        workers = state_dicts.if_all_fit(
            exchange.gather_objects,
            lambda: _checked(state, listed if several else listed[0], all_given),
            lambda workers: _facts(state, workers),
        )
    except Exception:
        if choice is not None:
            state.take(None)
        raise
    if several:
        state_dicts.warn_if_divided(len(workers), exchange.workers)
    for kind, lane in state.rounds.lanes.items():
        saved = _residuals(workers, kind, lane, several)
        coder_states.restore(lane.chunks, saved.of_this_worker(lane, state.params))
    own, parameters = workers[exchange.rank % len(workers)], state.rounds.parameters()
    for name, parameter in parameters.items():
        parameter.copy_(own["weights"][name])
    kinds = _in_full(state, own)
    if len(workers) != exchange.workers and several:
        states = [_in_host_memory(worker["state"]) for worker in workers]
        kinds.update(state.algorithm.regrouped(states))
    kinds = {
        kind: {name: array.to(parameters[name].device, copy=True) for name, array in arrays.items()}
        for kind, arrays in kinds.items()
    }
    has_changed = in_full(own["algorithm"]) != state.options
    state.driver.go_on(own["steps"], kinds, has_changed)
    _load_optimizer(state.optimizer, own["optimizer"])


def _in_full(state: AlgorithmState, given: StateDict) -> dict[str, Any]:
    """Return the algorithm's state in a state_dict, with the kinds that its version lacked."""
    saved, options = given["state"], in_full(given["algorithm"])
    added = state.algorithm.added(saved, given["steps"], options) if given["steps"] else {}
    return {**saved, **added}


def _in_host_memory(state: State) -> State:
    return {kind: {n: array.cpu() for n, array in arrays.items()} for kind, arrays in state.items()}


def _choice(state: AlgorithmState, given: Sequence[Any]) -> Decision | None:
    """Return the choice of "auto" in the first checkpoint, unless it is made here already.

    All workers must have the same.
    """
    automatic = state.automatic
    if automatic is None or not automatic.undecided:
        return None  # on all workers

    def saved_choice() -> Decision | None:
        for worker in given[:1]:
            state_dicts.require_format(worker, "algorithm", _OWNER)
            saved = {tensor["name"]: tensor["compression"] for tensor in worker["tensors"]}
            return automatic.saved_decision(saved, worker["algorithm"])
        return None

    return state_dicts.if_all_fit(
        state.rounds.exchange.gather_objects,
        saved_choice,
        lambda choice: [(f"the {NOUN}", {"choice of 'auto'": choice})],
    )


def _described(state: AlgorithmState) -> dict[str, Any]:
    """Return the values, except the algorithm, that a checkpoint and the state must share."""
    return {
        **state_dicts.described_workers(state.rounds.exchange),
        "tensors": state_dicts.described_parameters(state.parameters, state.params),
        "aliases": dict(state.aliases),
    }


def _renamed(state: AlgorithmState, given: Any) -> Any:
    """Return a state_dict with the names here; anything else as it is, for the checks."""
    if not isinstance(given, Mapping) or "tensors" not in given:
        return given
    names = state_dicts.Names(state.parameters, state.aliases)
    here = names.of(given, [tensor["name"] for tensor in given["tensors"]])
    return {
        **given,
        "tensors": state_dicts.renamed_parameters(given["tensors"], here),
        "weights": state_dicts.renamed(given["weights"], here),
        **{
            key: {
                kind: state_dicts.renamed(values, here)
                for kind, values in given.get(key, {}).items()
            }
            for key in ("state", "residuals")
        },
    }


def _checked(
    state: AlgorithmState, given: StateDict | Sequence[StateDict], as_saved: Sequence[StateDict]
) -> list[StateDict]:
    """Return the state_dicts by rank, or raise ValueError if one does not fit.

    `as_saved`: the state_dicts with the names that they were saved with.
    """

    def read(worker: Any) -> States:
        state_dicts.require_format(worker, "algorithm", _OWNER)
        return States(dict(worker), {}, b"")

    workers = [states.header for states in state_dicts.by_rank(state.rounds.exchange, given, read)]
    for worker in as_saved:
        state_dicts.require_entries(worker)
    for worker in workers:
        names = _check_one(state, worker)
    for kind, lane in state.rounds.lanes.items():
        saved = _residuals(workers, kind, lane, several=not isinstance(given, Mapping))
        saved.check(lane, state.params, names, strict=True)
    return workers


def _check_one(state: AlgorithmState, given: StateDict) -> dict[str, str]:
    """Raise ValueError if a state_dict of any rank does not fit. Return the names of its tensors.

    Its residuals are not checked.
    """
    here = _described(state)
    fitting.check(NOUN, "algorithm", given["algorithm"]["name"], state.options["name"])
    names = state_dicts.check_parameters(given["tensors"], here["tensors"], strict=True)
    _check_state(state, given)
    sizes = _sizes(given["optimizer"]), _sizes(state.optimizer.state_dict())
    fitting.check(NOUN, "sizes of the optimizer's groups", *sizes)
    return names


def _residuals(workers: Sequence[StateDict], kind: str, lane: Lane, several: bool) -> Saved:
    """Return the arrays of state_dicts for the vectors of a kind of round."""
    names = {chunk.piece.tensor for chunk in lane.chunks}
    arrays: list[Arrays] = []
    for worker in workers:
        arrays.append({})
        for saved_kind, tensors in worker["residuals"].items():
            if undivided(saved_kind) == undivided(kind):
                of_names = {name: states for name, states in tensors.items() if name in names}
                arrays[-1].update(coder_states.unpacked(of_names))
    return Saved(arrays, several, state_dicts.machines_of(workers[0]))


def _check_state(state: AlgorithmState, given: Mapping[str, Any]) -> None:
    """Raise ValueError unless the saved state has the kinds and shapes of a new state."""
    begun = state.algorithm.begin(state.rounds.parameters()) if given["steps"] else {}
    saved = _in_full(state, given)
    kinds = [kind for kind in saved if not is_arriving(kind)]
    fitting.check(NOUN, "set of kinds of state", sorted(kinds), sorted(begun))
    for kind, arrays in begun.items():
        names = sorted(saved[kind]), sorted(arrays)
        fitting.check(NOUN, f"set of parameters with a {kind}", *names)
        for name, array in arrays.items():
            shapes = list(saved[kind][name].shape), list(array.shape)
            fitting.check(NOUN, f"shape of the {kind} of parameter '{name}'", *shapes)


def _sizes(optimizer: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in optimizer["param_groups"]]


def _facts(state: AlgorithmState, workers: Sequence[StateDict]) -> Facts:
    """Return facts that must be the same in the checkpoints of all workers."""
    checksums = [
        (
            f"the {kind} of parameter {name} of the state_dict",
            {"checksum": digest(array.cpu().numpy())},
        )
        for kind, arrays in workers[0]["state"].items()
        if state.driver.is_shared(kind)
        for name, array in arrays.items()
    ]
    values = {"steps": workers[0]["steps"], "files": len(workers)}
    return [("the state_dict", values), *checksums]

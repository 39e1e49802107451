"""What a `state_dict` has: plain values and tensors. That of a CompressionState:

    {"format": 1, "rank", "world_size", "machines", "momentum", "steps", "learning_rates",
     "parameters": [{"name", "shape", "dtype", "compression"}, ...],
     "arrays": {NAME: {"NODE.WHAT.BEGIN": tensor, ...}, ...}}

NODE is "worker", "aggregator" (of the chunks that this worker owns) or "trainer" (equal on all).
WHAT is "residual", "momentum", "weight_decay" or "stream", and BEGIN the element that it begins at.
A stream has a row for each chunk: where it begins and ends, and the two words of its random stream.
"""

from __future__ import annotations

from contextlib import suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np
import torch

from ..agreement import Facts
from ..checkpoint import STREAM, Layout, Place, States, cutting, fitting
from ..checkpoint.cutting import Arrays, Saved
from ..compression import CompressionParams
from ..log import logger
from .channel import Channel
from .coder import Coder
from .gathering import Gather, agree

if TYPE_CHECKING:
    from .exchange import Exchange
    from .state import CompressionState

StateDict = Mapping[str, Any]
Description = Mapping[str, Any]
Prepared = TypeVar("Prepared")
Tensors = Dict[str, Dict[str, torch.Tensor]]
"""By tensor, and by NODE.WHAT.BEGIN."""

FORMAT = 1
SAYS = "state_dict"  # what errors call it
_OWN = {"gradient": "momentum", "weight_decay": "weight_decay"}  # by the kind of `Momentum.state`


def state_dict(state: CompressionState) -> Dict[str, Any]:
    """What this worker carries over; nothing may be under way."""
    arrays: Tensors = {name: {} for name in state.parameters}
    arrays.update(packed(coders(state.exchange)))
    for kind, states in state.momentum.state.items() if state.momentum else ():
        for name, tensor in states.items():
            arrays[name][f"trainer.{_OWN[kind]}.0"] = tensor.clone()
    return {
        "format": FORMAT,
        **_described(state),
        "steps": state.steps,
        "learning_rates": dict(state.rates),
        "arrays": arrays,
    }


def packed(several: Iterable[Tuple[str, Channel, Coder]]) -> Tensors:
    """What coders carry over, by their channel's tensor; each comes with its node."""
    arrays: Tensors = {}
    streams: Dict[Tuple[str, str], List[List[int]]] = {}
    for node, channel, coder in several:
        piece = channel.piece
        of_tensor = arrays.setdefault(piece.tensor, {})
        for what, values in coder.state().items():
            if what == STREAM:
                row = [piece.begin, piece.end, *values.tolist()]
                streams.setdefault((piece.tensor, f"{node}.{STREAM}.0"), []).append(row)
            else:
                of_tensor[f"{node}.{what}.{piece.begin}"] = torch.from_numpy(values)
    for (name, key), rows in streams.items():
        arrays[name][key] = torch.from_numpy(np.array(rows, np.uint64).view(np.int64))
    return arrays


def unpacked(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Arrays:
    """The reverse of `packed`."""
    arrays: Arrays = {}
    for name, of_tensor in tensors.items():
        for key, tensor in of_tensor.items():
            node, what, begin = key.split(".")
            array = tensor.detach().cpu().numpy()
            arrays[Place(name, node, what, int(begin))] = (
                array.view(np.uint64) if what == STREAM else array
            )
    return arrays


def load(
    state: CompressionState, given: Union[StateDict, Sequence[StateDict]], strict: bool
) -> None:
    """Go on from what `state_dict` returned, once all of it was checked; see `CompressionState`.

    Workers agree before each step of it, so that all of them fail if one does.
    """
    several, gather = not isinstance(given, Mapping), state.exchange.gather_objects
    workers = if_all_can(gather, lambda: _read_all(given), _facts_of)
    state.recall(workers[0].header["parameters"])
    arrays = if_all_can(
        gather, lambda: _fitting(state, workers, several, strict), lambda arrays: []
    )
    if not several:
        chosen = with_what_it_owns(state.exchange, arrays[0])
    elif len(workers) == state.exchange.workers:
        chosen = _with_aggregators(arrays[state.exchange.rank], arrays)
    else:
        chosen = _shared_out(state, arrays)
    apply(state, chosen)
    header = workers[0].header
    state.steps, state.rates = header["steps"], dict(header["learning_rates"])


def if_all_can(
    gather: Gather, prepare: Callable[[], Prepared], facts: Callable[[Prepared], Facts]
) -> Prepared:
    """What `prepare` returns, if it returns on all workers, with the same facts about it.

    Otherwise it raises its own error, and other workers a RuntimeError.
    """
    call, doing = "load_state_dict", "call load_state_dict"
    try:
        prepared = prepare()
    except Exception:
        with suppress(RuntimeError):  # this error says more
            agree(gather, [("", {call: "a state_dict that it refuses"})], doing)
        raise
    agree(gather, [("", {call: "a state_dict that fits"}), *facts(prepared)], doing)
    return prepared


def _read_all(given: Union[StateDict, Sequence[StateDict]]) -> List[States]:
    """This worker's state_dict, or those of several in the order of their ranks."""
    if isinstance(given, Mapping):
        return [_read(given)]
    return [states for _, states in fitting.in_order_of_ranks([(SAYS, _read(s)) for s in given])]


def _facts_of(workers: Sequence[States]) -> Facts:
    """What must be the same in all workers' state_dicts."""
    header = workers[0].header
    of_parameters = [
        (f"parameter {parameter['name']} of the state_dict", parameter["compression"])
        for parameter in header["parameters"]
    ]
    values = {"steps": header["steps"], "files": len(workers)}
    return [("the state_dict", values), *of_parameters]


def _fitting(
    state: CompressionState, workers: Sequence[States], several: bool, strict: bool
) -> List[Arrays]:
    """What the workers' files have for this state; ValueError if they do not fit.

    `several`: they are of all workers that there were. Otherwise there is one, of this worker.
    """
    for number, states in enumerate(workers):
        expected = {
            "world_size": len(workers) if several else state.exchange.workers,
            "rank": number if several else state.exchange.rank,
        }
        for key, value in expected.items():
            fitting.check(SAYS, key, states.header[key], value)
        _check(state, states, strict)
    if several and len(workers) != state.exchange.workers:
        _require_no_machines(state, len(workers))
    return [_of_known(state, states.arrays) for states in workers]


def _described(state: CompressionState) -> Dict[str, Any]:
    """What must fit the state that goes on from it."""
    return {
        **workers_of(state.exchange),
        "momentum": state.momentum and state.momentum.mu,
        "parameters": described_parameters(state.parameters, state.params),
    }


def workers_of(exchange: Exchange) -> Dict[str, Any]:
    """This worker, and how many there are."""
    return {
        "rank": exchange.rank,
        "world_size": exchange.workers,
        "machines": exchange.machines and exchange.machines.count,
    }


def described_parameters(
    parameters: Mapping[str, torch.nn.Parameter], params: Mapping[str, CompressionParams]
) -> List[Dict[str, Any]]:
    """The parameters and their compression, as plain values."""
    return [
        {
            "name": name,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype),
            "compression": fitting.as_read(params[name].identity()),
        }
        for name, parameter in parameters.items()
    ]


def require(given: Any, key: str, of: str) -> None:
    """ValueError unless it is a state_dict, with this key, that this version reads."""
    if not isinstance(given, Mapping) or not {"format", key} <= given.keys():
        raise ValueError(f"this is not a state_dict of {of}")
    if given["format"] != FORMAT:
        raise ValueError(
            f"the state_dict has format {given['format']}, but this gluon_gc reads {FORMAT}"
        )


def _read(given: StateDict) -> States:
    """A state_dict as a checkpoint of `gluon_gc.checkpoint` would be read."""
    require(given, "parameters", "CompressionState")
    return States(dict(given), unpacked(given["arrays"]), b"")


def _check(state: CompressionState, states: States, strict: bool) -> None:
    """Raise ValueError unless it fits."""
    here = _described(state)
    for key in ("momentum", "machines"):
        fitting.check(SAYS, key, states.header[key], here[key])
    names = check_parameters(states.header["parameters"], here["parameters"], strict)
    found = {place: a for place, a in states.arrays.items() if place.node == "worker"}
    layout = worker_layout(state.exchange.channels)
    expected = {place: of for place, of in layout.items() if place.tensor in names}
    fitting.check_arrays(SAYS, found, expected, names, strict)


def check_parameters(
    there: Iterable[Description], here: Iterable[Description], strict: bool
) -> Dict[str, str]:
    """Raise ValueError unless parameters are as they were; those that are in both, by their names.

    Each says its "name", and what must be the same. If strict, all are in both.
    """
    of_there = {one["name"]: one for one in there}
    of_here = {one["name"]: one for one in here}
    if strict:
        fitting.check(SAYS, "set of parameters", sorted(of_there), sorted(of_here))
    common = of_there.keys() & of_here.keys()
    for name in common:
        fitting.check_parameter(SAYS, f"'{name}'", of_there[name], of_here[name], of_here[name])
    return {name: name for name in common}


def worker_layout(channels: Iterable[Channel]) -> Layout:
    """Shape and dtype of each array that this worker's coders keep, of channels that have one."""
    layout: Layout = {}
    for channel in channels:
        if channel.coder is None:
            continue
        piece, chunk = channel.piece, channel.chunk
        for what, of_array in chunk.params.state_layout(chunk.size, chunk.dtype).items():
            begin = 0 if what == STREAM else piece.begin
            layout[Place(piece.tensor, "worker", what, begin)] = of_array
    return layout


def _of_known(state: CompressionState, arrays: Arrays) -> Arrays:
    return {place: array for place, array in arrays.items() if place.tensor in state.parameters}


def with_what_it_owns(exchange: Exchange, arrays: Arrays) -> Arrays:
    """What this worker had, and what others had for the chunks that it owns now.

    All workers call this.
    """
    everybody = exchange.gather_objects(_not_owned(exchange, arrays), "call load_state_dict")
    return _with_aggregators(arrays, everybody)


def _not_owned(exchange: Exchange, arrays: Arrays) -> Arrays:
    """What this worker had as the owner of chunks that are others' now, and all random streams."""
    mine = cutting.by_tensor(c.piece for c in _compressed(exchange) if c.aggregator is not None)

    def is_mine(place: Place, array: np.ndarray) -> bool:
        if place.what == STREAM or place.tensor not in mine:
            return False
        return any(mine[place.tensor].overlapping(place.begin, place.begin + array.size))

    return {
        place: array
        for place, array in arrays.items()
        if place.node == "aggregator" and not is_mine(place, array)
    }


def _with_aggregators(arrays: Arrays, everybody: Sequence[Arrays]) -> Arrays:
    """A worker's, and what all have as owners."""
    joined = {place: a for place, a in arrays.items() if place[1:3] != ("aggregator", STREAM)}
    for of_worker in everybody:
        for place, array in of_worker.items():
            if place[1:3] == ("aggregator", STREAM):
                rows = [joined[place], array] if place in joined else [array]
                joined[place] = np.concatenate(rows)
            elif place.node == "aggregator":
                joined[place] = array
    return joined


def _require_no_machines(state: CompressionState, before: int) -> None:
    if state.exchange.machines is not None:
        raise ValueError(
            f"the {SAYS} is of {before} workers, but {state.exchange.workers} are here: what "
            'machines add up first cannot be shared out; use "hierarchical": False'
        )


def _shared_out(state: CompressionState, arrays: Sequence[Arrays]) -> Arrays:
    """What this worker goes on with of what the workers of another cluster had."""
    before, now = len(arrays), state.exchange.workers
    logger.warning(
        "what %d workers carried over is shared out to %d; the sum of residuals stays", before, now
    )
    shares = {}
    for name, params in state.params.items():
        if params.compressor is not None:
            alike = params.compressor.traits.draws_alike
            shares[name] = fitting.Share(before, now, state.exchange.rank, alike)
    return fitting.shared_out(arrays, shares, leads=True)


def apply(state: CompressionState, arrays: Arrays) -> None:
    """Go on from these arrays; what they lack begins at zero."""
    restore(state.exchange, arrays)
    if state.momentum is not None:
        for kind, what in _OWN.items():
            state.momentum.state[kind] = {
                place.tensor: torch.from_numpy(array.copy())
                for place, array in arrays.items()
                if (place.node, place.what) == ("trainer", what)
            }


def restore(exchange: Exchange, arrays: Arrays) -> None:
    """Let an exchange's coders go on from these arrays; what they lack begins at zero."""
    saved = Saved(arrays)
    for node, channel, coder in coders(exchange):
        coder.load_state(cut(node, channel, coder, saved))


def cut(node: str, channel: Channel, coder: Coder, saved: Saved) -> Dict[str, np.ndarray]:
    """The saved states of a chunk, however it was cut; zeros where there are none."""
    layout = coder.codec.saved_layout()
    return saved.cut(node, channel.piece, layout, lambda: coder.state()[STREAM])


def _compressed(exchange: Exchange) -> List[Channel]:
    return [channel for channel in exchange.channels if channel.coder is not None]


def coders(exchange: Exchange) -> Iterator[Tuple[str, Channel, Coder]]:
    """This worker's coders, and those that it has as an owner."""
    for channel in _compressed(exchange):
        yield "worker", channel, channel.coder
        if channel.aggregator is not None:
            yield "aggregator", channel, channel.aggregator

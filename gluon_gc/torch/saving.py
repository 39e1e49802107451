"""What a CompressionState's `state_dict` has: plain values and tensors.

    {"format": 1, "rank", "world_size", "momentum", "steps", "learning_rates",
     "parameters": [{"name", "shape", "dtype", "compression", "senders"}, ...],
     "arrays": {NAME: {"NODE.WHAT.BEGIN": tensor, ...}, ...}}

NODE is "worker", "aggregator" (of the chunks that this worker owns) or "trainer" (equal on all),
WHAT is "residual", "momentum", "weight_decay" or "stream", and BEGIN the element that it begins at.
A stream has a row for each chunk: where it begins and ends, and the two words of its random stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

import numpy as np
import torch
import torch.distributed as dist

from .. import fitting, pieces
from ..checkpoint import STREAM, Layout, Place, States
from ..compression import CompressionParams
from ..log import logger
from ..pieces import Arrays
from .channel import Channel, TwoWay
from .coder import Coder

if TYPE_CHECKING:
    from .state import CompressionState

_FORMAT = 1
_SAYS = "the state_dict"  # what errors call it
_OWN = {"gradient": "momentum", "weight_decay": "weight_decay"}  # kinds of `Momentum.state`


def state_dict(state: CompressionState) -> Dict[str, Any]:
    """What this worker carries over; nothing may be under way."""
    arrays: Dict[str, Dict[str, torch.Tensor]] = {name: {} for name in state.parameters}
    for place, array in _arrays(state).items():
        whole = torch.from_numpy(array.view(np.int64) if place.what == STREAM else array)
        arrays[place.tensor][".".join(map(str, place[1:]))] = whole
    for kind, states in (state.momentum.state if state.momentum else {}).items():
        for name, tensor in states.items():
            arrays[name][f"trainer.{_OWN[kind]}.0"] = tensor.clone()
    described = _described(state)
    return {"format": _FORMAT, **described, "steps": state.steps, "arrays": arrays,
            "learning_rates": dict(state.rates)}


def load(
    state: CompressionState, given: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
    strict: bool,
) -> None:
    """Go on from what `state_dict` returned, once all of it was checked; see `CompressionState`."""
    several = not isinstance(given, Mapping)
    all_workers = [_read(one) for one in (given if several else [given])]
    here = fitting.as_read(_described(state))
    if several:
        all_workers = [one for _, one in fitting.in_order_of_ranks([(_SAYS, s) for s in all_workers])]
    size = here["world_size"]
    mine = [all_workers[here["rank"]]] if len(all_workers) == size else all_workers
    if len(mine) > 1:
        logger.warning(
            "the state of %d workers is shared out to %d: residuals sum to what they did",
            len(mine),
            size,
        )
        here["world_size"] = len(mine)
    numbers: Dict[int, int] = {}
    for rank, one in enumerate(mine):
        here["rank"] = rank if len(mine) > 1 else here["rank"]
        for key in ("world_size", "rank", "momentum"):
            fitting.check(_SAYS, key, one.header[key], here[key])
        there = one.header["parameters"]
        numbers = fitting.numbers_of_parameters(_SAYS, there, here["parameters"], strict)
        _check(state, one.arrays, strict)
    chosen = mine[0].arrays
    if len(mine) > 1:
        shares = {
            name: fitting.Share(len(mine), size, state.exchange.rank, params.compressor.traits.draws_alike)
            for name, params in state.params.items()
            if params.compressor is not None
        }
        everything = [one.arrays for one in mine]
        chosen = fitting.shared_out(everything, shares, leads=True)
    elif several:
        for one in all_workers:
            chosen.update((p, a) for p, a in one.arrays.items() if p.node == "aggregator")
    else:
        chosen = _with_others(state, chosen)
    del numbers
    _apply(state, chosen)
    state.steps = mine[0].header["steps"]
    state.rates = dict(mine[0].header["learning_rates"])


def _apply(state: CompressionState, arrays: Arrays) -> None:
    for node, channel, coder in _coders(state):
        params = _params_of(channel, node)
        coder.load_state(_cut(channel, node, params, arrays, coder))
    if state.momentum is None:
        return
    for kind, what in _OWN.items():
        state.momentum.state[kind] = {
            place.tensor: torch.from_numpy(array.copy())
            for place, array in arrays.items()
            if (place.node, place.what) == ("trainer", what)
        }

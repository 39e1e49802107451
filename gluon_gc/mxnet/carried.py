"""What codecs carry over from step to step, as the named arrays of a checkpoint.

A name is "INDEX/BEGIN-END/NODE/NAME": of the tensor, its slice, whether "worker" or "aggregator"
carries it over, and what it is.
"""

from __future__ import annotations

from typing import Collection, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from ..checkpoint import Layout
from .channel import Channel
from .codec import state_layout
from .exchange import CompressingKVStore


def state(store: CompressingKVStore, names: Collection[str]) -> Dict[str, np.ndarray]:
    """Residuals and momentum of these tensors; waits until all exchanges are done."""
    channels = _compressed(store, names)
    aggregators = store.aggregator_states([c for c in channels if store.keeps_aggregator(c)])
    arrays = {}
    for channel in channels:
        kept = {"worker": channel.codec.state(), "aggregator": aggregators.get(channel, ())}
        for node, states in kept.items():
            for path, chunk_state in zip(channel.paths, states):
                arrays.update((f"{path}/{node}/{name}", a) for name, a in chunk_state.items())
    return arrays


def layout(store: CompressingKVStore, names: Collection[str]) -> Layout:
    """Shape and dtype of each array of `state`."""
    return {
        f"{path}/{node}/{name}": of_array
        for channel in _compressed(store, names)
        for node, layouts in _layouts(store, channel)
        for path, chunk_layout in zip(channel.paths, layouts)
        for name, of_array in chunk_layout.items()
    }


def load(
    store: CompressingKVStore, names: Collection[str], arrays: Mapping[str, np.ndarray]
) -> None:
    """Go on from what `state` returned, whose arrays are as `layout` says."""
    for channel in _compressed(store, names):
        for node, layouts in _layouts(store, channel):
            states = [
                {name: arrays[f"{path}/{node}/{name}"] for name in chunk_layout}
                for path, chunk_layout in zip(channel.paths, layouts)
            ]
            if node == "worker":
                channel.codec.load_state(states)
            else:
                store.load_aggregator_states(channel, states)


def _compressed(store: CompressingKVStore, names: Collection[str]) -> List[Channel]:
    return [channel for channel in store.channels_of(names) if channel.codec is not None]


def _layouts(store: CompressingKVStore, channel: Channel) -> Iterator[Tuple[str, List[Layout]]]:
    """For each node whose states this worker saves, the layout of those of each chunk."""
    nodes = {"worker": channel.params}
    if store.keeps_aggregator(channel):
        nodes["aggregator"] = channel.params.aggregators
    for node, params in nodes.items():
        yield node, [state_layout(params, chunk.size, chunk.dtype) for chunk in channel.chunks]

"""Residuals, momentum and random streams as named arrays, flat over the whole tensor.

`state` joins the arrays of the chunks. `load` cuts them for the current chunks.
"""

from __future__ import annotations

import functools
import itertools
from typing import Collection, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from ...checkpoint import STREAM, Layout, Place
from ...checkpoint.cutting import Arrays, Saved
from ...plan import Slice
from ..exchange.channel import Channel
from ..exchange.exchange import Exchange, States


def state(exchange: Exchange, names: Collection[str]) -> Iterator[Tuple[Place, np.ndarray]]:
    """This worker's state of these tensors, in the order of `layout`; waits for all exchanges.

    It is a generator, which makes each array when it is asked for.
    """
    shapes = layout(exchange, names)
    unfinished: Arrays = {}
    missing = {place: shape[0] for place, (shape, _) in shapes.items()}
    for node, channels in _kept(exchange, names):
        runs = _runs(channels)
        streams: Dict[str, List[List[int]]] = {}
        if node == "worker":
            all_states = (channel.codec.state() for channel in channels)
        else:
            all_states = exchange.aggregator_states(channels)
        for channel, states in zip(channels, all_states):
            for piece, chunk_state in zip(channel.slices, states):
                if piece.tensor not in names:
                    continue
                for what, values in chunk_state.items():
                    if what == STREAM:
                        row = [piece.begin, piece.end, *values.tolist()]
                        streams.setdefault(piece.tensor, []).append(row)
                        continue
                    place = Place(piece.tensor, node, what, runs[piece])
                    if place not in unfinished:
                        shape, dtype = shapes[place]
                        unfinished[place] = np.empty(shape, dtype)
                    begin = piece.begin - runs[piece]
                    unfinished[place][begin : begin + piece.size] = values
                    missing[place] -= piece.size
                    if not missing[place]:
                        yield place, unfinished.pop(place)
        for tensor, rows in streams.items():
            yield Place(tensor, node, STREAM), np.array(rows, np.uint64)


def layout(exchange: Exchange, names: Collection[str]) -> Layout:
    """Shape and dtype of each array of `state`, in the order in which the arrays are complete."""
    whole: Layout = {}
    for node, channels in _kept(exchange, names):
        runs = _runs(channels)
        streams: Dict[Place, int] = {}
        for channel in channels:
            params = channel.params if node == "worker" else channel.params.aggregators
            for piece in channel.slices:
                if piece.tensor not in names:
                    continue
                chunk_layout = params.state_layout(piece.size, channel.dtype)
                for what, ((count, *_), dtype) in chunk_layout.items():
                    if what == STREAM:
                        place = Place(piece.tensor, node, STREAM)
                        streams[place] = streams.get(place, 0) + 1
                    else:
                        place = Place(piece.tensor, node, what, runs[piece])
                        ((so_far,), _) = whole.pop(place, ((0,), dtype))
                        whole[place] = (so_far + count,), dtype
        whole.update((place, ((chunks, 4), "uint64")) for place, chunks in streams.items())
    return whole


def load(exchange: Exchange, names: Collection[str], arrays: Arrays) -> None:
    """Restore a result of `state`; all workers call it, each with its own arrays.

    State that is in no array starts from zero, with a new random stream. The arrays of servers are
    in rank 0's checkpoint. An aggregator on a worker may find its arrays in the checkpoint of any
    worker.
    """
    load_workers(exchange, names, arrays)
    aggregated = [channel for channel in _compressed(exchange, names) if channel.aggregated]
    aggregator_arrays = {
        place: array for place, array in arrays.items() if place.node == "aggregator"
    }
    saved = Saved(exchange.share_aggregators(aggregated, aggregator_arrays))
    exchange.load_aggregators(aggregated, lambda c: _cut(exchange, c, "aggregator", saved))


def load_workers(exchange: Exchange, names: Collection[str], arrays: Arrays) -> None:
    """Restore this worker's part of a result of `state`, without aggregators."""
    saved = Saved(arrays)
    for channel in _compressed(exchange, names):
        channel.codec.load_state(_cut(exchange, channel, "worker", saved))


def places(exchange: Exchange) -> Dict[str, Tuple[int, int]]:
    """For each compressed tensor, the index of this worker's residual, and their number."""
    compressed = (channel for channel in exchange.channels if channel.codec is not None)
    return {
        piece.tensor: exchange.place(chunk)
        for channel in compressed
        for chunk in channel.chunks
        for piece in chunk.slices
    }


def _compressed(exchange: Exchange, names: Collection[str]) -> List[Channel]:
    return [channel for channel in exchange.channels.of(names) if channel.codec is not None]


def _kept(exchange: Exchange, names: Collection[str]) -> Iterator[Tuple[str, List[Channel]]]:
    """For each node whose states this worker saves, its channels."""
    channels = _compressed(exchange, names)
    yield "worker", channels
    yield "aggregator", [channel for channel in channels if exchange.keeps_aggregator(channel)]


def _runs(channels: Iterable[Channel]) -> Dict[Slice, int]:
    """For each slice, the first element of the run of slices without gaps that it is in."""
    runs: Dict[Slice, int] = {}
    last: Optional[Slice] = None
    slices = itertools.chain.from_iterable(channel.slices for channel in channels)
    for piece in sorted(slices, key=lambda piece: (piece.tensor, piece.begin)):
        follows = last is not None and (last.tensor, last.end) == (piece.tensor, piece.begin)
        runs[piece] = runs[last] if follows else piece.begin
        last = piece
    return runs


def _cut(exchange: Exchange, channel: Channel, node: str, saved: Saved) -> States:
    """The saved states of a channel's chunks, for a node."""
    params = channel.params if node == "worker" else channel.params.aggregators
    return [
        saved.cut(
            node,
            chunk.slices[0],
            params.state_layout(chunk.size, channel.dtype),
            functools.partial(exchange.first_stream, chunk, node),
        )
        for chunk in channel.chunks
    ]

"""Residuals, momentum and random streams as named arrays, flat over the whole tensor.

`state` joins the arrays of the chunks. `load` cuts them for the current chunks.
"""

from __future__ import annotations

import functools
from typing import Collection, Iterator

import numpy as np

from ... import kernels
from ...exchange.plan import Slice
from ...state import Arrays, Key, Layout, chunks
from ..exchange.channel import Channel
from ..exchange.exchange import Exchange, States


def state(exchange: Exchange, names: Collection[str]) -> Iterator[tuple[Key, np.ndarray]]:
    """This worker's state of these tensors, in the order of `layout`; waits for all exchanges.

    It is a generator, which makes each array when it is asked for.
    """
    for node, channels in _kept(exchange, names):
        if node == "worker":
            all_states = (channel.coder.state() for channel in channels)
        else:
            all_states = exchange.aggregator_states(channels)
        pieces = (
            (node, piece, chunk_state)
            for channel, states in zip(channels, all_states)
            for piece, chunk_state in zip(channel.slices, states)
            if piece.tensor in names
        )
        yield from chunks.joined(pieces, _layout(node, channels, names), _runs(channels))


def layout(exchange: Exchange, names: Collection[str]) -> Layout:
    """Shape and dtype of each array of `state`, in the order in which the arrays are complete."""
    whole: Layout = {}
    for node, channels in _kept(exchange, names):
        whole.update(_layout(node, channels, names))
    return whole


def _layout(node: str, channels: list[Channel], names: Collection[str]) -> Layout:
    pieces = (
        (node, piece, _chunk_layout(channel, node, piece.size))
        for channel in channels
        for piece in channel.slices
        if piece.tensor in names
    )
    return chunks.layout_of(pieces, _runs(channels))


def _chunk_layout(channel: Channel, node: str, size: int) -> kernels.Layout:
    params = channel.params if node == "worker" else channel.params.aggregators
    return params.state_layout(size, channel.dtype)


def _runs(channels: list[Channel]) -> dict[Slice, int]:
    return chunks.runs_of(piece for channel in channels for piece in channel.slices)


def load(exchange: Exchange, names: Collection[str], arrays: Arrays) -> None:
    """Restore a result of `state`; all workers call it, each with its own arrays.

    State that is in no array starts from zero, with a new random stream. The arrays of servers are
    in rank 0's checkpoint. An aggregator on a worker may find its arrays in the checkpoint of any
    worker.
    """
    load_workers(exchange, names, arrays)
    aggregated = [channel for channel in _compressed(exchange, names) if channel.aggregated]
    aggregator_arrays = {key: array for key, array in arrays.items() if key.node == "aggregator"}
    saved = chunks.SavedArrays(exchange.share_aggregators(aggregated, aggregator_arrays))
    exchange.load_aggregators(aggregated, lambda c: _cut(exchange, c, "aggregator", saved))


def load_workers(exchange: Exchange, names: Collection[str], arrays: Arrays) -> None:
    """Restore this worker's part of a result of `state`, without aggregators."""
    saved = chunks.SavedArrays(arrays)
    for channel in _compressed(exchange, names):
        channel.coder.load_state(_cut(exchange, channel, "worker", saved))


def senders(exchange: Exchange) -> dict[str, tuple[int, int]]:
    """For each compressed tensor, the number of this worker's residual, and their count."""
    compressed = (channel for channel in exchange.channels if channel.coder is not None)
    return {
        piece.tensor: exchange.sender(chunk)
        for channel in compressed
        for chunk in channel.chunks
        for piece in chunk.slices
    }


def _compressed(exchange: Exchange, names: Collection[str]) -> list[Channel]:
    return [channel for channel in exchange.channels.of(names) if channel.coder is not None]


def _kept(exchange: Exchange, names: Collection[str]) -> Iterator[tuple[str, list[Channel]]]:
    """For each node whose states this worker saves, its channels."""
    channels = _compressed(exchange, names)
    yield "worker", channels
    yield "aggregator", [channel for channel in channels if exchange.keeps_aggregator(channel)]


def _cut(exchange: Exchange, channel: Channel, node: str, saved: chunks.SavedArrays) -> States:
    """The saved states of a channel's chunks, for a node."""
    return [
        saved.cut(
            node,
            chunk.slices[0],
            _chunk_layout(channel, node, chunk.size),
            functools.partial(exchange.first_stream, chunk, node),
        )
        for chunk in channel.chunks
    ]

"""The residuals, momentum and random streams of coders, as named tensors of a state_dict.

    {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...}

NODE is "worker" or "aggregator" (of the chunks that this worker owns). KIND is "residual",
"momentum" or "stream", and BEGIN the element of the tensor that the array begins at. A stream has a
row for each chunk: the elements that it begins and ends at, and two words of its random stream.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np
import torch

from ..checkpoint import STREAM, Layout, Place, cutting
from ..checkpoint.cutting import Arrays, Saved
from .coder import Coder
from .exchanged_chunk import ExchangedChunk

if TYPE_CHECKING:
    from .exchange import Exchange

Tensors = Dict[str, Dict[str, torch.Tensor]]
"""By tensor, and by NODE.KIND.BEGIN."""


class NodeCoder(NamedTuple):
    """A coder of a chunk, and the node that it belongs to: "worker" or "aggregator"."""

    node: str
    chunk: ExchangedChunk
    coder: Coder


def coders(chunks: Iterable[ExchangedChunk]) -> Iterator[NodeCoder]:
    """This worker's coders, and those of the chunks that it owns."""
    for chunk in chunks:
        if chunk.coder is not None:
            yield NodeCoder("worker", chunk, chunk.coder)
        if chunk.aggregator is not None:
            yield NodeCoder("aggregator", chunk, chunk.aggregator)


def packed(chunks: Iterable[ExchangedChunk]) -> Tensors:
    """The states of the coders of these chunks."""
    tensors: Tensors = {}
    streams: Dict[Tuple[str, str], List[List[int]]] = {}
    for node, chunk, coder in coders(chunks):
        piece = chunk.piece
        of_tensor = tensors.setdefault(piece.tensor, {})
        for kind, values in coder.state().items():
            if kind == STREAM:
                row = [piece.begin, piece.end, *values.tolist()]
                streams.setdefault((piece.tensor, f"{node}.{STREAM}.0"), []).append(row)
            else:
                of_tensor[f"{node}.{kind}.{piece.begin}"] = torch.from_numpy(values)
    for (name, key), rows in streams.items():
        tensors[name][key] = torch.from_numpy(np.array(rows, np.uint64).view(np.int64))
    return tensors


def unpacked(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Arrays:
    """The reverse of `packed`."""
    arrays: Arrays = {}
    for name, of_tensor in tensors.items():
        for key, tensor in of_tensor.items():
            node, kind, begin = key.split(".")
            array = tensor.detach().cpu().numpy()
            array = array.view(np.uint64) if kind == STREAM else array
            arrays[Place(name, node, kind, int(begin))] = array
    return arrays


def worker_layout(chunks: Iterable[ExchangedChunk]) -> Layout:
    """Shape and dtype of each array of this worker's coders."""
    layout: Layout = {}
    for chunk in chunks:
        if chunk.coder is None:
            continue
        piece, plan = chunk.piece, chunk.plan
        for kind, of_array in plan.params.state_layout(plan.size, plan.dtype).items():
            begin = 0 if kind == STREAM else piece.begin
            layout[Place(piece.tensor, "worker", kind, begin)] = of_array
    return layout


def restore(chunks: Iterable[ExchangedChunk], arrays: Arrays) -> None:
    """Let coders go on from arrays, however these are cut. Missing elements begin at zero."""
    saved = Saved(arrays)
    for node, chunk, coder in coders(chunks):
        coder.load_state(
            saved.cut(node, chunk.piece, coder.codec.saved_layout(), coder.stream_state)
        )


def with_owned(exchange: Exchange, arrays: Arrays) -> Arrays:
    """This worker's arrays, and other workers' aggregator arrays of the chunks that it owns now.

    All workers call this.
    """
    everybody = exchange.gather_objects(_not_owned(exchange, arrays), "call load_state_dict")
    return with_aggregators(arrays, everybody)


def _not_owned(exchange: Exchange, arrays: Arrays) -> Arrays:
    """The aggregator arrays of chunks that other workers own now, and all random streams."""
    owned = cutting.by_tensor(c.piece for c in exchange.chunks if c.aggregator is not None)

    def is_owned(place: Place, array: np.ndarray) -> bool:
        if place.what == STREAM or place.tensor not in owned:
            return False
        return any(owned[place.tensor].overlapping(place.begin, place.begin + array.size))

    return {
        place: array
        for place, array in arrays.items()
        if place.node == "aggregator" and not is_owned(place, array)
    }


def with_aggregators(arrays: Arrays, everybody: Sequence[Arrays]) -> Arrays:
    """A worker's arrays, and the aggregator arrays of all workers."""
    joined = {place: a for place, a in arrays.items() if place[1:3] != ("aggregator", STREAM)}
    for of_worker in everybody:
        for place, array in of_worker.items():
            if place[1:3] == ("aggregator", STREAM):
                rows = [joined[place], array] if place in joined else [array]
                joined[place] = np.concatenate(rows)
            elif place.node == "aggregator":
                joined[place] = array
    return joined

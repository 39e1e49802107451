"""The residuals, momentum and random streams of coders, as named tensors of a state_dict.

    {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...}

- NAME is the name of a parameter or another exchanged tensor.
- NODE is "worker", or "aggregator" for the chunks that this worker owns.
- KIND is "residual", "momentum" or "stream".
- BEGIN is the first element of the array in the flat tensor NAME.

A tensor of the kind "stream" has one row for each chunk: its first element, the element after its
last one, and the two words of its random stream.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Collection,
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

from ...plan import Chunk
from ...state import STREAM, Layout, Place, cutting, fitting
from ...state.cutting import Arrays, Saved
from ..coder import Coder
from ..exchanged_chunk import ExchangedChunk

if TYPE_CHECKING:
    from ..exchange import Exchange

Tensors = Dict[str, Dict[str, torch.Tensor]]
"""The keys are NAME, and then NODE.KIND.BEGIN."""


_row = torch.zeros(1, 4, dtype=torch.int64, device="cpu")  # of a tensor of the kind "stream"


class NodeCoder(NamedTuple):
    """A coder of a chunk, and its node: "worker" or "aggregator"."""

    node: str
    chunk: ExchangedChunk
    coder: Coder


def coders(chunks: Iterable[ExchangedChunk]) -> Iterator[NodeCoder]:
    """Yield this worker's coders, and its aggregators of the chunks that it owns."""
    for chunk in chunks:
        if chunk.coder is not None:
            yield NodeCoder("worker", chunk, chunk.coder)
        if chunk.aggregator is not None:
            yield NodeCoder("aggregator", chunk, chunk.aggregator)


def packed(chunks: Iterable[ExchangedChunk], undone: Collection[str] = ()) -> Tensors:
    """Return the states of the coders of these chunks.

    `undone`: the tensors whose last exchange is left out, as if it had been undone.
    """
    tensors: Tensors = {}
    streams: Dict[Tuple[str, str], List[List[int]]] = {}
    for node, chunk, coder in coders(chunks):
        piece = chunk.piece
        tensor_states = tensors.setdefault(piece.tensor, {})
        for kind, values in coder.state(undone=piece.tensor in undone).items():
            if kind == STREAM:
                row = [piece.begin, piece.end, *values.tolist()]
                streams.setdefault((piece.tensor, f"{node}.{STREAM}.0"), []).append(row)
            else:
                tensor_states[f"{node}.{kind}.{piece.begin}"] = torch.from_numpy(values)
    for (name, key), rows in streams.items():
        tensors[name][key] = torch.from_numpy(np.array(rows, np.uint64).view(np.int64))
    return tensors


def zeros(chunks: Iterable[Chunk]) -> Tensors:
    """Return zeros in the shapes and dtypes that `packed` returns for a worker's coders."""
    tensors: Tensors = {}
    for chunk in chunks:
        if chunk.params is None:
            continue
        (piece,) = chunk.slices
        tensor_states = tensors.setdefault(piece.tensor, {})
        for kind, (shape, dtype) in chunk.params.state_layout(chunk.size, chunk.dtype).items():
            if kind == STREAM:
                rows = tensor_states.get(f"worker.{STREAM}.0", _row[:0])
                tensor_states[f"worker.{STREAM}.0"] = torch.cat([rows, _row])
            else:
                array = torch.zeros(shape, dtype=getattr(torch, dtype), device="cpu")
                tensor_states[f"worker.{kind}.{piece.begin}"] = array
    return tensors


def unpacked(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Arrays:
    """Invert `packed`."""
    arrays: Arrays = {}
    for name, tensor_states in tensors.items():
        for key, tensor in tensor_states.items():
            node, kind, begin = key.split(".")
            array = tensor.detach().cpu().numpy()
            array = array.view(np.uint64) if kind == STREAM else array
            arrays[Place(name, node, kind, int(begin))] = array
    return arrays


def worker_layout(chunks: Iterable[ExchangedChunk]) -> Layout:
    """Return the shape and dtype of each array of this worker's coders."""
    layout: Layout = {}
    for chunk in chunks:
        if chunk.coder is None:
            continue
        piece, plan = chunk.piece, chunk.plan
        for kind, array_layout in plan.params.state_layout(plan.size, plan.dtype).items():
            begin = 0 if kind == STREAM else piece.begin
            layout[Place(piece.tensor, "worker", kind, begin)] = array_layout
    return layout


def restore(chunks: Iterable[ExchangedChunk], arrays: Arrays) -> None:
    """Restore coders from arrays of any chunks. Missing elements start from zero."""
    saved = Saved(arrays)
    for node, chunk, coder in coders(chunks):
        coder.load_state(
            saved.cut(node, chunk.piece, coder.codec.saved_layout(), coder.stream_state)
        )


def with_owned(exchange: Exchange, arrays: Arrays) -> Arrays:
    """Add other workers' aggregator arrays of the chunks that this worker owns now.

    All workers call this.
    """
    not_owned = exchange.gather_objects(_not_owned(exchange, arrays), "call load_state_dict")
    return with_aggregators(arrays, not_owned)


def _not_owned(exchange: Exchange, arrays: Arrays) -> Arrays:
    """Return all random streams, and the aggregator arrays that others own now, even in part."""
    owned = cutting.by_tensor(c.piece for c in exchange.chunks if c.aggregator is not None)

    def is_owned(place: Place, array: np.ndarray) -> bool:
        if place.what == STREAM or place.tensor not in owned:
            return False
        pieces = owned[place.tensor].overlapping(place.begin, place.begin + array.size)
        return sum(cutting.part(place, array, piece)[1].size for *_, piece in pieces) == array.size

    return {
        place: array
        for place, array in arrays.items()
        if place.node == "aggregator" and not is_owned(place, array)
    }


def with_aggregators(arrays: Arrays, all_workers: Sequence[Arrays]) -> Arrays:
    """Add the aggregator arrays of all workers to one worker's arrays."""
    others = {place: a for place, a in arrays.items() if place[1:3] != ("aggregator", STREAM)}
    return {**others, **fitting.aggregators(all_workers)}

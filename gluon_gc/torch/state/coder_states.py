"""The residuals, momentum and random streams of coders, as named tensors of a state_dict.

    {NAME: {"NODE.KIND.BEGIN": tensor, ...}, ...}

NAME is the name of a parameter or another exchanged tensor. The rest are the fields of a
`gluon_gc.state.Key`; the node is "worker", "aggregator" for the chunks that this worker owns, or
"inner" for its payloads inside a machine.
Random streams are saved as int64, because PyTorch has few functions for uint64.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Collection,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Sequence,
)

import numpy as np
import torch

from ...compression import CompressionParams
from ...exchange.chunk import ExchangedChunk
from ...exchange.coder import Coder
from ...exchange.machines import Groups
from ...exchange.plan import Chunk, Slice
from ...state import STREAM, Arrays, Key, Layout, chunks, division, fitting
from .state_dicts import NOUN, REMEDY

if TYPE_CHECKING:
    from ...exchange.exchange import Lane

Tensors = Dict[str, Dict[str, torch.Tensor]]
"""The keys are NAME, and then NODE.KIND.BEGIN."""


INNER = "inner"


def coders(exchanged: Iterable[ExchangedChunk]) -> Iterator[tuple[str, Slice, Coder]]:
    """Yield this worker's coders, with their nodes; see above."""
    for chunk in exchanged:
        if chunk.coder is not None:
            yield "worker", chunk.piece, chunk.coder
        if chunk.aggregator is not None:
            yield "aggregator", chunk.piece, chunk.aggregator
        if chunk.inside is not None and chunk.inside.to_owner.coder is not None:
            yield INNER, chunk.piece, chunk.inside.to_owner.coder


def packed(exchanged: Iterable[ExchangedChunk], undone: Collection[str] = ()) -> Tensors:
    """Return the states of the coders of these chunks.

    `undone`: the tensors whose last exchange is left out, as if it had been undone.
    """
    kept = list(coders(exchanged))
    begins = {piece: piece.begin for _, piece, _ in kept}
    layouts = [(node, piece, coder.codec.saved_layout()) for node, piece, coder in kept]
    states = ((n, piece, coder.state(undone=piece.tensor in undone)) for n, piece, coder in kept)
    tensors: Tensors = {piece.tensor: {} for piece in begins}
    for key, array in chunks.joined(states, chunks.layout_of(layouts, begins), begins):
        tensors[key.tensor][_text(key)] = _tensor(array)
    return tensors


def zeros(planned: Iterable[Chunk]) -> Tensors:
    """Return zeros in the shapes and dtypes that `packed` returns for a worker's coders."""
    tensors: Tensors = {}
    compressed = [chunk for chunk in planned if chunk.params is not None]
    for chunk in compressed:
        tensors[chunk.slices[0].tensor] = {}
    for key, (shape, dtype) in _layout(compressed).items():
        tensors[key.tensor][_text(key)] = _tensor(np.zeros(shape, dtype))
    return tensors


def unpacked(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Arrays:
    """Invert `packed`."""
    arrays: Arrays = {}
    for name, tensor_states in tensors.items():
        for text, tensor in tensor_states.items():
            node, kind, begin = text.split(".")
            array = tensor.detach().cpu().to_dense().numpy()  # earlier versions saved sparse ones
            array = array.view(np.uint64) if kind == STREAM else array
            arrays[Key(name, node, kind, int(begin))] = array
    return arrays


def _text(key: Key) -> str:
    return f"{key.node}.{key.what}.{key.begin}"


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array)


def worker_layout(exchanged: Iterable[ExchangedChunk]) -> Layout:
    """Return the shape and dtype of each array of this worker's coders."""
    return _layout([chunk.plan for chunk in exchanged if chunk.coder is not None])


def _layout(compressed: Sequence[Chunk]) -> Layout:
    pieces = [chunk.slices[0] for chunk in compressed]
    layouts = (chunk.params.state_layout(chunk.size, chunk.dtype) for chunk in compressed)
    of_worker = (("worker", piece, layout) for piece, layout in zip(pieces, layouts))
    return chunks.layout_of(of_worker, {piece: piece.begin for piece in pieces})


def restore(exchanged: Iterable[ExchangedChunk], arrays: Arrays) -> None:
    """Restore coders from arrays of any chunks. Missing elements start from zero."""
    saved = chunks.SavedArrays(arrays)
    for node, piece, coder in coders(exchanged):
        layout = coder.codec.saved_layout()
        coder.load_state(saved.cut(node, piece, layout, coder.stream_state))


class Senders(NamedTuple):
    """The tensors whose residuals belong to the same senders.

    A sender is a worker, or a machine whose workers sum their values first.
    """

    names: Collection[str]
    groups: Groups  # the workers of each sender, by their ranks

    @classmethod
    def of(
        cls, params: Mapping[str, CompressionParams], machines: Groups | None, workers: int
    ) -> Iterator[Senders]:
        """Yield the tensors that machines sum first, and the others."""
        single = [[rank] for rank in range(workers)]
        for hierarchical in (True, False):
            names = {name for name, own in params.items() if own.hierarchical == hierarchical}
            yield cls(names, machines if hierarchical and machines is not None else single)

    def joined(self, arrays: Sequence[Arrays]) -> list[Arrays]:
        """Return the arrays of each sender, given those of all workers."""
        return [
            {
                key: array
                for key, array in division.joined([arrays[rank] for rank in group]).items()
                if key.tensor in self.names and key.node != INNER
            }
            for group in self.groups
        ]


class Saved(NamedTuple):
    """The arrays of the workers that saved.

    They are those of this worker or, if `several`, of all workers by rank.
    """

    arrays: Sequence[Arrays]
    several: bool
    machines: Groups | None  # whose workers summed first

    def check(
        self,
        lane: Lane,
        params: Mapping[str, CompressionParams],
        names: Mapping[str, str],
        strict: bool,
    ) -> None:
        """Raise ValueError unless there are the arrays of a lane's coders."""
        if not self.several:
            (own,) = self.arrays
            layout = worker_layout(lane.chunks)
            of_machines = worker_layout(c for c in lane.chunks if c.inside is not None)
            if any(key.tensor in names and key not in own for key in of_machines):
                raise ValueError(
                    "the state_dict does not fit: this worker exchanges other chunks of its "
                    f"machine's sums than the worker that saved it; {REMEDY}"
                )
            _check_arrays(own, layout, names, strict)
            return
        layout = _layout([chunk.plan for chunk in lane.chunks if chunk.plan.params is not None])
        for senders in Senders.of(params, self.machines, len(self.arrays)):
            of_names = {name: names[name] for name in senders.names if name in names}
            for arrays in senders.joined(self.arrays):
                _check_arrays(arrays, layout, of_names, strict)

    def of_this_worker(self, lane: Lane, params: Mapping[str, CompressionParams]) -> Arrays:
        """Return the arrays with which this worker continues. All workers call this.

        If other workers saved, the random streams inside machines start anew.
        """
        exchange = lane.exchange
        if not self.several:
            not_owned = _not_owned(lane, self.arrays[0])
            others = exchange.gather_objects(not_owned, "call load_state_dict")
            return division.arrays_of_worker(self.arrays, 0, aggregating=others)
        machines = exchange.machines and exchange.machines.groups
        continued: Arrays = {}
        if len(self.arrays) == exchange.workers:
            own = self.arrays[exchange.rank].items()
            continued.update((key, array) for key, array in own if key.node == INNER)
        for before, now in zip(
            Senders.of(params, self.machines, len(self.arrays)),
            Senders.of(params, machines, exchange.workers),
        ):
            number = next(n for n, group in enumerate(now.groups) if exchange.rank in group)
            shares = {
                name: division.Share(
                    len(before.groups),
                    len(now.groups),
                    number,
                    params[name].compressor.traits.draws_alike,
                )
                for name in before.names
                if params[name].compressor is not None
            }
            same = before.groups == now.groups
            arrays = before.joined(self.arrays)
            continued.update(division.arrays_of_worker(arrays, number, None if same else shares))
        return continued


def _check_arrays(arrays: Arrays, layout: Layout, names: Mapping[str, str], strict: bool) -> None:
    """Raise ValueError unless workers' arrays have this layout, in the tensors with these names."""
    found = {k: array for k, array in arrays.items() if k.node == "worker" and k.tensor in names}
    expected = {key: entry for key, entry in layout.items() if key.tensor in names}
    fitting.check_arrays(NOUN, found, expected, names, strict)


def _not_owned(lane: Lane, arrays: Arrays) -> Arrays:
    """Return all random streams, and the aggregator arrays that others own now, even in part."""
    owned = chunks.by_tensor(c.piece for c in lane.chunks if c.aggregator is not None)

    def is_owned(key: Key, array: np.ndarray) -> bool:
        if key.what == STREAM or key.tensor not in owned:
            return False
        pieces = owned[key.tensor].overlapping(key.begin, key.begin + array.size)
        return sum(chunks.part(key, array, piece)[1].size for *_, piece in pieces) == array.size

    return {
        key: array
        for key, array in arrays.items()
        if key.node == "aggregator" and not is_owned(key, array)
    }

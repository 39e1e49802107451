"""Joins the states of chunks to the arrays of whole tensors, and cuts these for other chunks.

A new chunk continues the random stream of the old chunk that had its first element. If the new
chunk begins d elements later than the old one, its stream is 2^32 * d draws ahead. So no draw is
used twice, and the streams of two chunks do not overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import (
    Any,
    Callable,
    Generic,
    Iterable,
    Iterator,
    Mapping,
    TypeVar,
)

import numpy as np

from .. import kernels
from ..exchange.plan import Slice
from .file import STREAM, Arrays, Key, Layout

Item = TypeVar("Item")
ChunkState = Mapping[str, np.ndarray]
"""The arrays of one chunk by kind, as a codec saves and loads them."""

_STREAM_DISTANCE = 2**32  # draws between the streams of chunks, for each element between them


def runs_of(pieces: Iterable[Slice]) -> dict[Slice, int]:
    """For each slice, the first element of the run of slices without gaps that it is in."""
    runs: dict[Slice, int] = {}
    last: Slice | None = None
    for piece in sorted(pieces, key=lambda piece: (piece.tensor, piece.begin)):
        follows = last is not None and (last.tensor, last.end) == (piece.tensor, piece.begin)
        runs[piece] = runs[last] if follows else piece.begin
        last = piece
    return runs


def layout_of(
    chunks: Iterable[tuple[str, Slice, kernels.Layout]], begins: Mapping[Slice, int]
) -> Layout:
    """Shape and dtype of each array of `joined`, in its order.

    chunks: each chunk's node (see `Key`), elements, and `Codec.saved_layout`.
    begins: for each chunk, the first element of the array to which its own arrays are joined.
    """
    layout: Layout = {}
    rows: dict[Key, int] = {}
    for node, piece, chunk_layout in chunks:
        for what, ((count, *_), dtype) in chunk_layout.items():
            if what == STREAM:
                key = Key(piece.tensor, node, STREAM)
                rows[key] = rows.get(key, 0) + 1
            else:
                key = Key(piece.tensor, node, what, begins[piece])
                ((so_far,), _) = layout.pop(key, ((0,), dtype))
                layout[key] = (so_far + count,), dtype
    layout.update((key, ((count, 4), "uint64")) for key, count in rows.items())
    return layout


def joined(
    chunks: Iterable[tuple[str, Slice, ChunkState]], layout: Layout, begins: Mapping[Slice, int]
) -> Iterator[tuple[Key, np.ndarray]]:
    """Yield the arrays of a `layout_of` these chunks, each one as soon as it is complete."""
    unfinished: Arrays = {}
    missing = {key: shape[0] for key, (shape, _) in layout.items()}
    streams: dict[Key, list[list[int]]] = {}
    for node, piece, state in chunks:
        for what, values in state.items():
            if what == STREAM:
                row = [piece.begin, piece.end, *values.tolist()]
                streams.setdefault(Key(piece.tensor, node, STREAM), []).append(row)
                continue
            key = Key(piece.tensor, node, what, begins[piece])
            shape, dtype = layout[key]
            if values.shape == shape:
                yield key, values
                continue
            if key not in unfinished:
                unfinished[key] = np.empty(shape, dtype)
            begin = piece.begin - key.begin
            unfinished[key][begin : begin + values.size] = values
            missing[key] -= values.size
            if not missing[key]:
                yield key, unfinished.pop(key)
    for key, rows in streams.items():
        yield key, np.array(rows, np.uint64)


class Spans(Generic[Item]):
    """Items that cover ranges of elements, to be looked up by element."""

    def __init__(self, spans: Iterable[tuple[int, int, Item]]) -> None:
        self._spans = sorted(spans, key=lambda span: span[:2])  # first element, end, item
        self._begins = [begin for begin, _, _ in self._spans]
        self._ends = list(accumulate((end for _, end, _ in self._spans), max))  # the maximum so far

    def overlapping(self, begin: int, end: int) -> Iterator[tuple[int, int, Item]]:
        """The spans that have elements in [begin, end), sorted by their first element."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return (span for span in self._spans[first:last] if span[1] > begin)


def by_tensor(pieces: Iterable[Slice]) -> dict[str, Spans[Slice]]:
    """The slices of each tensor, by its name."""
    by_name = _grouped((piece.tensor, piece) for piece in pieces)
    return {
        name: Spans((piece.begin, piece.end, piece) for piece in slices)
        for name, slices in by_name.items()
    }


def part(key: Key, array: np.ndarray, piece: Slice) -> tuple[int, np.ndarray]:
    """The part of a flat array inside a slice: its first element in the tensor, and its values."""
    low, high = max(key.begin, piece.begin), min(key.begin + array.size, piece.end)
    return low, array[low - key.begin : high - key.begin]


class SavedArrays:
    """Arrays to be cut for chunks. Arrays of one kind must not overlap."""

    def __init__(self, arrays: Arrays) -> None:
        kinds = _grouped((key[:3], (key, array)) for key, array in arrays.items())
        self._found = {kind: Spans(_spans(kind[2], found)) for kind, found in kinds.items()}

    def cut(
        self,
        node: str,
        piece: Slice,
        layout: kernels.Layout,
        first_stream: Callable[[], np.ndarray],
    ) -> dict[str, np.ndarray]:
        """The states of a chunk, by kind. Elements that were not saved are zero.

        `first_stream` returns the state of the random stream if none was saved.
        """
        states = {}
        for what, (shape, dtype) in layout.items():
            if what == STREAM:
                stream = self._stream(node, piece)
                states[what] = first_stream() if stream is None else stream
                continue
            states[what] = np.zeros(shape, dtype)
            for _, _, (key, array) in self._overlapping(node, what, piece):
                begin, values = part(key, array, piece)
                states[what][begin - piece.begin : begin - piece.begin + values.size] = values
        return states

    def _overlapping(self, node: str, what: str, piece: Slice) -> Iterator[tuple[int, int, Any]]:
        spans = self._found.get((piece.tensor, node, what))
        return iter(()) if spans is None else spans.overlapping(piece.begin, piece.end)

    def _stream(self, node: str, piece: Slice) -> np.ndarray | None:
        """The random stream of a chunk. None if no stream was saved for its first element."""
        for begin, _, words in self._overlapping(node, STREAM, piece):
            if begin <= piece.begin:
                stream = np.array(words, np.uint64)
                kernels.jump(stream, (piece.begin - begin) * _STREAM_DISTANCE)
                return stream
        return None


def _spans(what: str, arrays: Iterable[tuple[Key, np.ndarray]]) -> Iterator[tuple[int, int, Any]]:
    """The spans of arrays of one kind, or for streams of their rows, with the state of each row."""
    for key, array in arrays:
        if what == STREAM:
            yield from ((int(row[0]), int(row[1]), row[2:]) for row in array)
        else:
            yield key.begin, key.begin + array.size, (key, array)


def _grouped(pairs: Iterable[tuple[Any, Item]]) -> Mapping[Any, list[Item]]:
    """Group items by key, in their order."""
    groups: dict[Any, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups

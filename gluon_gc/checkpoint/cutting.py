"""Saved states of chunks, cut from arrays of whole tensors or of other chunks.

A chunk that is cut otherwise goes on in the random stream of the chunk that had its first element,
2^32 draws further on for each element that it begins later: no draw is used twice, and no two
chunks meet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
    TypeVar,
)

import numpy as np

from .. import kernels
from ..plan import Slice
from .file import STREAM, Place

Arrays = Dict[Place, np.ndarray]
Item = TypeVar("Item")

_STREAM_ROOM = 2**32  # draws between two streams, for each element between their chunks


class Spans(Generic[Item]):
    """Items that span elements of something, found by the elements.

    Parameters
    ----------
    spans : iterable of (int, int, Item)
        Of each item, its first element and the one behind its last.
    """

    def __init__(self, spans: Iterable[Tuple[int, int, Item]]) -> None:
        self._spans = sorted(spans, key=lambda span: span[:2])
        self._begins = [begin for begin, _, _ in self._spans]
        self._ends = list(accumulate((end for _, end, _ in self._spans), max))  # of all so far

    def overlapping(self, begin: int, end: int) -> Iterator[Tuple[int, int, Item]]:
        """The spans that have any of these elements, by their first elements."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return (span for span in self._spans[first:last] if span[1] > begin)


def by_tensor(pieces: Iterable[Slice]) -> Dict[str, Spans[Slice]]:
    """The slices of each tensor."""
    of_tensor = _grouped((piece.tensor, piece) for piece in pieces)
    return {
        name: Spans((piece.begin, piece.end, piece) for piece in of_one)
        for name, of_one in of_tensor.items()
    }


def part(place: Place, array: np.ndarray, piece: Slice) -> Tuple[int, np.ndarray]:
    """A flat array's part within a slice of its tensor: the first element's number, and values."""
    low, high = max(place.begin, piece.begin), min(place.begin + array.size, piece.end)
    return low, array[low - place.begin : high - place.begin]


class Saved:
    """Arrays of a checkpoint, found by tensor, node and kind, and then by element.

    It looks at all arrays once, when it is made.

    Parameters
    ----------
    arrays : dict of Place to array
        They must not overlap.
    """

    def __init__(self, arrays: Arrays) -> None:
        kinds = _grouped((place[:3], (place, array)) for place, array in arrays.items())
        self._found = {kind: Spans(_spans(kind[2], some)) for kind, some in kinds.items()}

    def cut(
        self,
        node: str,
        piece: Slice,
        layout: kernels.Layout,
        first_stream: Callable[[], np.ndarray],
    ) -> Dict[str, np.ndarray]:
        """The saved states of a chunk; zeros where there are none.

        Parameters
        ----------
        node : str
            As `Place` has it.
        piece : Slice
            The chunk.
        layout : kernels.Layout
            As `Codec.saved_layout` has it for the chunk.
        first_stream : callable
            Makes the state of the chunk's random stream if none was saved.
        """
        states = {}
        for what, (shape, dtype) in layout.items():
            if what == STREAM:
                stream = self._stream(node, piece)
                states[what] = first_stream() if stream is None else stream
                continue
            states[what] = np.zeros(shape, dtype)
            for _, _, (place, array) in self._overlapping(node, what, piece):
                begin, values = part(place, array, piece)
                states[what][begin - piece.begin : begin - piece.begin + values.size] = values
        return states

    def _overlapping(self, node: str, what: str, piece: Slice) -> Iterator[Tuple[int, int, Any]]:
        spans = self._found.get((piece.tensor, node, what))
        return iter(()) if spans is None else spans.overlapping(piece.begin, piece.end)

    def _stream(self, node: str, piece: Slice) -> Optional[np.ndarray]:
        """The random stream of a chunk, from that of the chunk that had its first element."""
        for begin, _, words in self._overlapping(node, STREAM, piece):
            if begin <= piece.begin:
                stream = np.array(words, np.uint64)
                kernels.jump(stream, (piece.begin - begin) * _STREAM_ROOM)
                return stream
        return None


def _spans(what: str, arrays: Iterable[Tuple[Place, np.ndarray]]) -> Iterator[Tuple[int, int, Any]]:
    """The spans of arrays of one kind; of streams, those of their rows, each with its two words."""
    for place, array in arrays:
        if what == STREAM:
            yield from ((int(row[0]), int(row[1]), row[2:]) for row in array)
        else:
            yield place.begin, place.begin + array.size, (place, array)


def _grouped(pairs: Iterable[Tuple[Any, Item]]) -> Mapping[Any, List[Item]]:
    """By key its items, in their order."""
    groups: Dict[Any, List[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups

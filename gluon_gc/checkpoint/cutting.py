"""What nodes carry over for slices of a tensor, found in arrays that were cut otherwise.

A chunk that is cut otherwise goes on in the random stream of the chunk that had its first element,
2^32 draws further on for each element that it begins later: no draw is used twice, and no two
chunks meet.
"""

from __future__ import annotations

from typing import Dict, Iterator, Optional, Tuple

import numpy as np

from .. import kernels
from ..plan import Slice
from .file import Place

Arrays = Dict[Place, np.ndarray]

_STREAM_ROOM = 2**32  # draws between two streams, for each element between their chunks


def part(place: Place, array: np.ndarray, piece: Slice) -> Optional[Tuple[int, np.ndarray]]:
    """What a flat array has of a slice of its tensor: from which element on, and which."""
    low, high = max(place.begin, piece.begin), min(place.begin + array.size, piece.end)
    if place.tensor != piece.tensor or low >= high:
        return None
    return low, array[low - place.begin : high - place.begin]


def found(arrays: Arrays, place: Place, piece: Slice) -> Iterator[Tuple[int, np.ndarray]]:
    """What arrays have of a slice: from which element on, and which."""
    for there, array in arrays.items():
        if there[:3] == place[:3]:
            of_piece = part(there, array, piece)
            if of_piece is not None:
                yield of_piece


def stream_at(streams: Optional[np.ndarray], piece: Slice) -> Optional[np.ndarray]:
    """The random stream of a chunk, given those of all chunks as they were cut before."""
    for begin, end, *words in [] if streams is None else streams.tolist():
        if begin <= piece.begin < end:
            stream = np.array(words, np.uint64)
            kernels.jump(stream, (piece.begin - begin) * _STREAM_ROOM)
            return stream
    return None

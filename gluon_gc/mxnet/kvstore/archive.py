"""Serializes the states of aggregators, which travel to the workers' checkpoints and back."""

from __future__ import annotations

import json
from typing import Any, Hashable, Iterator, List, Mapping, Sequence

import numpy as np

from ... import kernels
from ...exchange.plan import Slice
from ...state import STREAM, Key
from ...state.chunks import by_tensor, part
from ..exchange.exchange import States

Arrays = Mapping[Key, np.ndarray]
Layouts = List[kernels.Layout]
"""For each chunk, the shape and the dtype of each array of its state."""


def num_bytes(layouts: Layouts) -> int:
    return sum(
        int(np.prod(shape)) * np.dtype(dtype).itemsize
        for layout in layouts
        for shape, dtype in layout.values()
    )


class Cutter:
    """Concatenates the arrays of states, and cuts the bytes into pages."""

    def __init__(self, states: Iterator[States]) -> None:
        self._arrays = (array for chunks in states for state in chunks for array in state.values())
        self._left = np.empty(0, np.uint8)

    def page(self, most: int) -> np.ndarray:
        """The next `most` bytes, uint8; fewer at the end."""
        page, filled = np.empty(most, np.uint8), 0
        while filled < most:
            if not self._left.size:
                array = next(self._arrays, None)
                if array is None:
                    break
                self._left = np.ascontiguousarray(array).view(np.uint8)
            taken = self._left[: most - filled]
            page[filled : filled + taken.size] = taken
            filled += taken.size
            self._left = self._left[taken.size :]
        return page[:filled]


class Joiner:
    """Restores states from the pages of a `Cutter`."""

    def __init__(self, layouts: Mapping[Hashable, Layouts]) -> None:
        self._layouts = iter(layouts.items())
        self.left = sum(map(num_bytes, layouts.values()))
        self._next()

    def _next(self) -> None:
        """Allocate the arrays of the next key whose state has any bytes."""
        for key, layouts in self._layouts:
            self._key = key
            self._states: States = [
                {name: np.empty(*of_array) for name, of_array in layout.items()}
                for layout in layouts
            ]
            arrays = [array for state in self._states for array in state.values()]
            self._rooms = [array.view(np.uint8) for array in arrays if array.size]
            if self._rooms:
                break

    def add(self, page: np.ndarray) -> Iterator[tuple[Hashable, States]]:
        """Add a page. Yields each state that it completes, with its key."""
        page = page[: self.left]
        self.left -= page.size
        while page.size:
            room = self._rooms[0]
            count = min(room.size, page.size)
            room[:count] = page[:count]
            page = page[count:]
            self._rooms[0] = room[count:]
            if count == room.size:
                self._rooms.pop(0)
            if not self._rooms:
                yield self._key, self._states
                self._next()


# Between workers


def parts(arrays: Arrays, pieces: Sequence[Slice]) -> dict[Key, np.ndarray]:
    """The parts of the arrays that lie in these slices, and all random streams of their tensors."""
    found, wanted = {}, by_tensor(pieces)
    for key, array in arrays.items():
        if key.tensor not in wanted:
            continue
        if key.what == STREAM:
            found[key] = array
            continue
        end = key.begin + array.size
        for _, _, piece in wanted[key.tensor].overlapping(key.begin, end):
            begin, values = part(key, array, piece)
            found[key._replace(begin=begin)] = values
    return found


def pack(arrays: Arrays) -> bytes:
    """Serialize arrays: a line of JSON that describes them, then their bytes; b"" for no arrays."""
    if not arrays:
        return b""
    table = [[*key, array.dtype.str, array.shape] for key, array in arrays.items()]
    return b"".join(
        [json.dumps(table).encode(), b"\n", *(array.tobytes() for array in arrays.values())]
    )


def unpack(data: bytes) -> dict[Key, np.ndarray]:
    """The arrays in the joined results of several `pack` calls; random streams are concatenated."""
    arrays: dict[Key, np.ndarray] = {}
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        table: list[Any] = json.loads(data[at:end])
        at = end + 1
        for *fields, dtype, shape in table:
            key = Key(*fields)
            array = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
            at += array.nbytes
            if key in arrays:
                array = np.concatenate([arrays[key], array])
            arrays[key] = array
    return arrays

"""What servers carry over from step to step, as bytes that go into a worker's checkpoint and back.

Rank 0 asks by command. A server answers page by page, where that worker pulls messages from.
"""

from __future__ import annotations

import base64
import io
from typing import Dict, List

import numpy as np

from .messages import MAX_BYTES

States = Dict[int, List[Dict[str, np.ndarray]]]
"""By key, the arrays that an aggregator keeps, chunk by chunk."""

PAGE_BYTES = MAX_BYTES - 1


def pack(states: States) -> bytes:
    """States as bytes that hold nothing but arrays."""
    arrays = {
        f"{key}/{chunk}/{name}": array
        for key, chunks in states.items()
        for chunk, state in enumerate(chunks)
        for name, array in state.items()
    }
    file = io.BytesIO()
    np.savez(file, **arrays, counts=[(key, len(chunks)) for key, chunks in states.items()])
    return file.getvalue()


def unpack(data: bytes) -> States:
    """What `pack` packed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        states: States = {key: [{} for _ in range(n)] for key, n in arrays["counts"].tolist()}
        for path in arrays:
            if path != "counts":
                key, chunk, name = path.split("/")
                states[int(key)][int(chunk)][name] = arrays[path]
    return states


def page(data: bytes, number: int) -> bytes:
    """A page: whether more follow, as a byte, then data."""
    begin = number * PAGE_BYTES
    more = begin + PAGE_BYTES < len(data)
    return bytes([more]) + data[begin : begin + PAGE_BYTES]


def to_json(states: List[Dict[str, np.ndarray]]) -> str:
    """What an aggregator keeps as text."""
    return base64.b64encode(pack({0: states})).decode()


def from_json(text: str) -> List[Dict[str, np.ndarray]]:
    """What `to_json` made text of."""
    return unpack(base64.b64decode(text))[0]

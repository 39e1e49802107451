"""What servers carry over from step to step, as bytes that go into a worker's checkpoint and back.

Rank 0 asks by command. A server answers page by page, where that worker pulls messages from.
"""

from __future__ import annotations

import base64
import io
from typing import Any, Dict, Mapping

import numpy as np

from .messages import MAX_BYTES

States = Dict[int, Dict[str, np.ndarray]]
"""By key, the arrays that an aggregator keeps of it."""

PAGE_BYTES = MAX_BYTES - 1


def pack(states: States) -> bytes:
    """States as bytes that hold nothing but arrays."""
    file = io.BytesIO()
    arrays = {f"{key}/{name}": a for key, state in states.items() for name, a in state.items()}
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> States:
    """What `pack` packed."""
    states: States = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for path in arrays:
            key, _, name = path.partition("/")
            states.setdefault(int(key), {})[name] = arrays[path]
    return states


def page(data: bytes, number: int) -> bytes:
    """A page: whether more follow, as a byte, then data."""
    begin = number * PAGE_BYTES
    more = begin + PAGE_BYTES < len(data)
    return bytes([more]) + data[begin : begin + PAGE_BYTES]


def to_json(state: Mapping[str, np.ndarray]) -> Dict[str, Any]:
    """Arrays as a JSON object."""
    return {"npz": base64.b64encode(pack({0: dict(state)})).decode()}


def from_json(text: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    """What `to_json` made an object of."""
    return unpack(base64.b64decode(text["npz"])).get(0, {})

"""How workers and servers make sure, before the first gradient, that they fit together.

Every worker pushes a description of itself to every server, as JSON, which compares the rows and
answers.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from mxnet.ndarray import NDArray

from ...agreement import describe, difference
from . import messages


def _pack(message: Mapping[str, Any]) -> NDArray:
    return messages.pack(json.dumps(message, sort_keys=True).encode())


def _unpack(message: NDArray) -> Dict[str, Any]:
    return json.loads(messages.unpack(message))


def hello(rank: int, about: Mapping[str, Any]) -> NDArray:
    """What a worker pushes, which `describe` says."""
    return _pack(describe(rank, about))


def answer(hellos: NDArray) -> NDArray:
    """What a server answers to the workers' hellos, uint8, shape (workers, bytes of a message)."""
    problem = difference([_unpack(row) for row in hellos])
    return _pack({"problem": problem})


def check(reply: NDArray) -> None:
    """Raise RuntimeError unless a server answered that all fits."""
    message = _unpack(reply)
    if message["problem"]:
        raise RuntimeError(f"the cluster does not fit together: {message['problem']}")

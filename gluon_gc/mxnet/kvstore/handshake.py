"""How workers and servers make sure, before the first gradient, that they fit together.

Every worker pushes a description of itself to every server, as JSON, which compares the rows and
answers.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping

from mxnet.ndarray import NDArray

from ... import env
from ...version import __version__
from . import messages

_SETTINGS = (
    "BYTEPS_PARTITION_BYTES",
    "BYTEPS_MIN_COMPRESS_BYTES",
    "MXNET_KVSTORE_BIGARRAY_BOUND",
)


def _pack(message: Mapping[str, Any]) -> NDArray:
    return messages.pack(json.dumps(message, sort_keys=True).encode())


def _unpack(message: NDArray) -> Dict[str, Any]:
    return json.loads(messages.unpack(message))


def describe(rank: int, about: Mapping[str, Any]) -> Dict[str, Any]:
    """A worker: its `bps.rank()`, and what all must share: settings, and what it is about to do."""
    settings = {name: env.get(name) for name in _SETTINGS}
    settings.update((name, _short(value)) for name, value in about.items())
    return {"rank": rank, "version": __version__, "settings": settings}


def hello(rank: int, about: Mapping[str, Any]) -> NDArray:
    """What a worker pushes, which `describe` says."""
    return _pack(describe(rank, about))


def answer(hellos: NDArray) -> NDArray:
    """What a server answers to the workers' hellos, uint8, shape (workers, bytes of a message)."""
    problem = difference([_unpack(row) for row in hellos])
    return _pack({"problem": problem})


def difference(hellos: List[Dict[str, Any]]) -> str:
    """The first thing that does not fit, in words; empty if all does."""
    first = hellos[0]
    for worker in hellos:
        name = f"worker {worker['rank']}"
        if worker["version"] != __version__:
            return f"{name} runs gluon_gc {worker['version']}, the server {__version__}"
        for setting, value in worker["settings"].items():
            if value != first["settings"].get(setting):
                return (
                    f"{name} has {setting} {value}, "
                    f"but worker {first['rank']} has {first['settings'].get(setting)}"
                )
    return ""


def check(reply: NDArray) -> None:
    """Raise RuntimeError unless a server answered that all fits."""
    message = _unpack(reply)
    if message["problem"]:
        raise RuntimeError(f"the cluster does not fit together: {message['problem']}")


def _short(value: Any) -> str:
    """As JSON; what is too long to be read in an error, as a digest of it."""
    text = json.dumps(value)
    if len(text) <= 300:
        return text
    return f"(SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"

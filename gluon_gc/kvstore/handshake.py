"""How workers and servers make sure, before the first gradient, that they fit together.

Every worker pushes a description of itself to every server, as JSON. A
gluon_gc server compares the rows and answers; a stock MXNet server merely echoes them.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from mxnet.ndarray import NDArray

from ..version import __version__
from . import messages

_WORKER, _SERVER = "gluon_gc worker", "gluon_gc server"


def _pack(message: Mapping[str, Any]) -> NDArray:
    return messages.pack(json.dumps(message, sort_keys=True).encode())


def _unpack(message: NDArray) -> Dict[str, Any]:
    try:
        return json.loads(messages.unpack(message))
    except ValueError:
        return {}


def hello(rank: int, settings: Mapping[str, Any]) -> NDArray:
    """What a worker pushes: its `bps.rank()`, and the settings that all must share."""
    return _pack({"from": _WORKER, "rank": rank, "version": __version__, "settings": settings})


def answer(hellos: NDArray) -> NDArray:
    """What a server answers to the workers' hellos, uint8, shape (workers, bytes of a message)."""
    problem = _difference([_unpack(row) for row in hellos])
    return _pack({"from": _SERVER, "version": __version__, "problem": problem})


def _difference(hellos: List[Dict[str, Any]]) -> str:
    """The first thing that does not fit, in words; empty if all does."""
    first = hellos[0]
    for worker in hellos:
        if worker.get("from") != _WORKER:
            return "a worker does not speak gluon_gc's protocol"
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


def check(reply: NDArray, server: int) -> None:
    """Raise RuntimeError unless server number `server` answered that all fits."""
    message = _unpack(reply)
    if message.get("from") != _SERVER:
        raise RuntimeError(
            f"server {server} is not a gluon_gc server but MXNet's own; "
            "start it with DMLC_ROLE=server bpslaunch"
        )
    if message["problem"]:
        raise RuntimeError(f"the cluster does not fit together: {message['problem']}")

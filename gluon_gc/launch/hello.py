"""The first message of a node to the scheduler, and what must be the same in all of them."""

from __future__ import annotations

from typing import Any, Dict, Optional

from .. import env
from ..version import __version__

_MOST = 65536  # workers, and workers a machine: a message with more is not one of our nodes'
FRAMEWORKS = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The frameworks that workers train with. All workers of a cluster have the same one."""
ZEROMQ = b"\xff"
"""The first byte of ZeroMQ, which MXNet's own nodes speak, and so does ps-lite's scheduler."""


def required_settings() -> Dict[str, Any]:
    """The values that must be the same on all nodes, by name."""
    return {"version of gluon_gc": __version__, **env.shared_settings()}


def restarts() -> Optional[int]:
    """The number of times that this node was restarted; None if nobody restarts it."""
    return env.get("GLUON_GC_RESTARTS")


def check(hello: Dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless a node of ours can have sent this."""
    rank, local_size = hello["rank"], hello["local_size"]
    if hello["role"] not in ("worker", "server") or not isinstance(hello["alike"], dict):
        raise ValueError
    if hello["role"] == "worker":
        if type(rank) is not int or type(local_size) is not int:
            raise TypeError
        _check_framework(hello["framework"], hello["store"])
        if not 0 <= rank < _MOST or not 0 < local_size < _MOST:
            raise ValueError


def _check_framework(framework: Any, store: Any) -> None:
    if framework not in FRAMEWORKS:
        raise ValueError
    if store is not None:
        host, port = store
        if type(host) is not str or type(port) is not int:
            raise TypeError

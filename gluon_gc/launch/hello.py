"""The hello, a node's first message to the scheduler, and the settings that must agree in it."""

from __future__ import annotations

from typing import Any, Dict, Optional

from .. import env
from ..version import __version__

_MOST = 65536  # limit of ranks and of workers on a machine; a larger value is no valid hello
FRAMEWORKS = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The frameworks that workers train with. All workers of a cluster have the same one."""
ZEROMQ = b"\xff"
"""The first byte of ZeroMQ, the protocol of MXNet's own nodes and of ps-lite's scheduler."""


def required_settings() -> Dict[str, Any]:
    """The values that must be the same on all nodes, by name."""
    return {"version of gluon_gc": __version__, **env.shared_settings()}


def restarts() -> Optional[int]:
    """The number of restarts of this node so far; None if bpslaunch does not restart it."""
    return env.get("GLUON_GC_RESTARTS")


def check(hello: Dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError unless this is a valid hello of gluon_gc."""
    rank, local_size = hello["rank"], hello["local_size"]
    if hello["role"] not in ("worker", "server") or not isinstance(hello["settings"], dict):
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

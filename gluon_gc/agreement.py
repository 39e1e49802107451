"""How workers make sure, before the first gradient, that they fit together."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping

from . import env
from .version import __version__

_SETTINGS = (
    "BYTEPS_PARTITION_BYTES",
    "BYTEPS_MIN_COMPRESS_BYTES",
    "MXNET_KVSTORE_BIGARRAY_BOUND",
)


def describe(rank: int, about: Mapping[str, Any]) -> Dict[str, Any]:
    """A worker: its `bps.rank()`, and what all must share: settings, and what it is about to do."""
    settings = {name: env.get(name) for name in _SETTINGS}
    settings.update((name, _short(value)) for name, value in about.items())
    return {"rank": rank, "version": __version__, "settings": settings}


def difference(hellos: List[Dict[str, Any]]) -> str:
    """The first thing that does not fit, in words; empty if all does."""
    first = hellos[0]
    for worker in hellos:
        name = f"worker {worker['rank']}"
        if worker["version"] != __version__:
            return f"{name} runs gluon_gc {worker['version']}, but {__version__} is here"
        for setting, value in worker["settings"].items():
            if value != first["settings"].get(setting):
                return (
                    f"{name} has {setting} {value}, "
                    f"but worker {first['rank']} has {first['settings'].get(setting)}"
                )
    return ""


def _short(value: Any) -> str:
    """As JSON; what is too long to be read in an error, as a digest of it."""
    text = json.dumps(value)
    if len(text) <= 300:
        return text
    return f"(SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"

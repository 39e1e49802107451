"""What benchmark/cluster.py compares: MXNet and Horovod as they are, and gluon_gc on both."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple

_WITH_FEEDBACK = {"ef": "vanilla", "momentum": "nesterov"}
COMPRESSIONS: Dict[str, Dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "onebit": {"compressor": "onebit", "scaling": True, **_WITH_FEEDBACK},
    "topk 0.001": {"compressor": "topk", "k": 0.001, **_WITH_FEEDBACK},
    "randomk 0.001": {"compressor": "randomk", "k": 0.001, **_WITH_FEEDBACK},
    "dithering 2": {"compressor": "dithering", "k": 2, **_WITH_FEEDBACK},
    "bytegrad": {"compressor": "bytegrad", **_WITH_FEEDBACK},
    "dgc 0.001": {"compressor": "dgc", "k": 0.001, "momentum": "nesterov"},
}
"""compression_params by what the table calls them."""


class Method(NamedTuple):
    """A way to exchange gradients.

    Attributes
    ----------
    name : str
        What the table calls it.
    engine : str
        Of exchange.ENGINES.
    backend : str
        What carries it: "server" or "horovod".
    options : mapping
        The engine's.
    """

    name: str
    engine: str
    backend: str
    options: Mapping[str, Any]


def methods() -> List[Method]:
    """All of them, the ones to compare with first."""
    others = [
        Method("MXNet fp32", "mxnet", "server", {}),
        Method("MXNet fp16", "mxnet", "server", {"dtype": "float16"}),
        Method("MXNet 2bit", "mxnet", "server", {"2bit": 0.5}),
        Method("Horovod fp32", "horovod", "horovod", {}),
        Method("Horovod fp16", "horovod", "horovod", {"fp16": True}),
    ]
    ours = [
        Method(f"{name}, {backend}", "gluon_gc", backend, {"compression_params": params})
        for backend in ("server", "horovod")
        for name, params in COMPRESSIONS.items()
    ]
    return others + ours

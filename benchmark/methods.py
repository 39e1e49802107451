"""The methods that benchmark/cluster.py compares: MXNet, Horovod, PyTorch, and gluon_gc on each."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple

from gluon_gc.compression import keys, registry

_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "onebit": [{"scaling": True}],
    "topk": [{"k": 0.01}, {"k": 0.001}],
    "randomk": [{"k": 0.001}],
    "dithering": [{"k": 2}],
    "dgc": [{"k": 0.001}],
}
"""Options of compressors. A compressor that is missing here runs with its defaults."""


def _compressions() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "fp32", {}
    yield "fp16", {"fp16": True}
    for name, kind in registry.items():
        for options in _SETTINGS.get(name, [{}]):
            params = {"compressor": name, **options, "momentum": "nesterov"}
            if not kind.traits.accumulates:
                params["ef"] = "vanilla"
            yield f"{name} {options['k']}" if "k" in options else name, params


COMPRESSIONS = dict(_compressions())
"""compression_params by their name in the table."""
_AUTOMATIC = {
    f"auto {accuracy}": {"compressor": "auto", "accuracy": accuracy}
    for accuracy in keys()["accuracy"].choices
}
"""These have no momentum: the trainer would apply it even to tensors left uncompressed."""


def _powersgd(rank: int) -> dict[str, Any]:
    return {"algorithm": {"name": "powersgd", "rank": rank}}


def _without_momentum(name: str) -> dict[str, Any]:
    return {key: value for key, value in COMPRESSIONS[name].items() if key != "momentum"}


class Method(NamedTuple):
    """A method of exchanging gradients.

    Attributes
    ----------
    name : str
        Its name in the table.
    engine : str
        A key of exchange.ENGINES.
    backend : str
        The transport: "server", "horovod" or "torch".
    options : mapping
        The engine's options.
    """

    name: str
    engine: str
    backend: str
    options: Mapping[str, Any]


def methods() -> list[Method]:
    """Return all methods, the baselines first."""
    given = {**COMPRESSIONS, **_AUTOMATIC}
    torch = [
        Method("DDP fp32", "ddp", "torch", {}),
        Method("DDP fp16", "ddp", "torch", {"fp16": True}),
        *(Method(f"DDP PowerSGD {rank}", "ddp", "torch", {"powersgd": rank}) for rank in (1, 2, 4)),
        *(
            Method(f"powersgd {rank}, torch", "gluon_gc.torch algorithm", "torch", _powersgd(rank))
            for rank in (1, 2, 4)
        ),
        *(
            Method(f"{name}, torch", "gluon_gc.torch", "torch", {"compression_params": params})
            for name, params in given.items()
        ),
    ]
    between = [
        Method("HSDP fp32", "hsdp", "torch", {}),
        *(
            Method(f"HSDP {name}", "hsdp", "torch", {"compression_params": _without_momentum(name)})
            for name in ("fp16", "onebit", "topk 0.01", "blockwise")
        ),
    ]
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
        for name, params in given.items()
    ]
    return others + ours + torch + between

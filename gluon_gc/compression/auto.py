"""The candidates among which the compressor "auto" chooses, for each value of "accuracy".

Adam divides by the root of the squared gradients, so gradients that are mostly lost in compression
cost it much more accuracy than SGD (docs/benchmarks/convergence.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from .params import CompressionParams, parse

PLAIN = "none"
"""The name of the candidate that sends a tensor uncompressed."""
FP16 = "fp16"
"""The name of the candidate that sends a tensor in float16."""
INNER = "inner"
"""The name of the inner compressor of candidates, in measurements."""
_WITH_INNER = ", 8 bits inside machines"  # the end of a candidate's name
CANDIDATES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    FP16: {"fp16": True},
    "bytegrad": {"compressor": "bytegrad"},
    "blockwise": {"compressor": "blockwise", "bits": 4, "hadamard": True},
    "onebit": {"compressor": "onebit", "scaling": True},
    "topk": {"compressor": "topk", "k": 0.01},
}
"""The compression_params of each candidate, the most accurate first."""
_ALLOWED: dict[str, tuple[str, ...]] = {
    "exact": (PLAIN,),
    "safe": (PLAIN, FP16, "bytegrad"),
    "aggressive": (PLAIN, FP16, "bytegrad", "onebit", "topk"),
}
_FOR_ADAM = {**_ALLOWED, "aggressive": (PLAIN, FP16, "bytegrad", "blockwise")}


def candidates(params: CompressionParams, inner: bool = False) -> dict[str, CompressionParams]:
    """The candidates for a tensor with these params, by name, the most accurate first.

    Each candidate with a compressor gets the error feedback, its decay, the momentum and the inner
    compressor of `params`. `inner`: whether there are such candidates with `inner_params`, too.
    """
    allowed = _FOR_ADAM if params.for_adam else _ALLOWED
    found: dict[str, CompressionParams] = {}
    for name in allowed[params.accuracy]:
        found[name] = candidate = _filled(CANDIDATES[name], params)
        may_add = inner and params.hierarchical and params.inner is None
        if may_add and candidate.compressor is not None:
            found[name + _WITH_INNER] = replace(candidate, inner=inner_params())
    return found


@lru_cache(maxsize=None)
def inner_params() -> CompressionParams:
    """The params of the inner compressor that "auto" may add to a candidate."""
    return parse({"compressor": "blockwise", "bits": 8, "exchange": "gather"})


def outer_name(name: str) -> str:
    """The name of the candidate without the inner compressor."""
    return name[: -len(_WITH_INNER)] if name.endswith(_WITH_INNER) else name


def accuracy_of(name: str) -> str:
    """The strictest accuracy with which "auto" may choose a candidate, or any other method."""
    return next((each for each, names in _ALLOWED.items() if name in names), "aggressive")


def _filled(candidate: dict[str, Any], params: CompressionParams) -> CompressionParams:
    momentum = None if params.mu is None else "nesterov"
    compressed = {"ef": params.ef, "ef_decay": params.ef_decay, "momentum": momentum}
    if "compressor" not in candidate:
        return parse({**candidate, "hierarchical": params.hierarchical})
    filled = parse({**candidate, **compressed, "hierarchical": params.hierarchical}, params.mu)
    return replace(filled, inner=params.inner)

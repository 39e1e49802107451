"""The candidates among which the compressor "auto" chooses, for each value of "accuracy".

Adam divides by the root of the squared gradients, so gradients that are mostly lost in compression
cost it much more accuracy than SGD (docs/benchmarks/convergence.md).
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .params import CompressionParams, parse

PLAIN = "none"
"""The name of the candidate that sends a tensor uncompressed."""
FP16 = "fp16"
"""The name of the candidate that sends a tensor in float16."""
CANDIDATES: Dict[str, Dict[str, Any]] = {
    PLAIN: {},
    FP16: {"fp16": True},
    "bytegrad": {"compressor": "bytegrad"},
    "blockwise": {"compressor": "blockwise", "bits": 4, "hadamard": True},
    "onebit": {"compressor": "onebit", "scaling": True},
    "topk": {"compressor": "topk", "k": 0.01},
}
"""The compression_params of each candidate, the most accurate first."""
_ALLOWED: Dict[str, Tuple[str, ...]] = {
    "exact": (PLAIN,),
    "safe": (PLAIN, FP16, "bytegrad"),
    "aggressive": (PLAIN, FP16, "bytegrad", "onebit", "topk"),
}
_FOR_ADAM = {**_ALLOWED, "aggressive": (PLAIN, FP16, "bytegrad", "blockwise")}


def candidates(params: CompressionParams) -> Dict[str, CompressionParams]:
    """The candidates for a tensor with these params, by name, the most accurate first.

    Each candidate with a compressor gets the error feedback, its decay and the momentum of
    `params`.
    """
    allowed = _FOR_ADAM if params.for_adam else _ALLOWED
    return {name: _filled(CANDIDATES[name], params) for name in allowed[params.accuracy]}


def accuracy_of(name: str) -> str:
    """The strictest accuracy with which "auto" may choose a candidate, or any other method."""
    return next((each for each, names in _ALLOWED.items() if name in names), "aggressive")


def _filled(candidate: Dict[str, Any], params: CompressionParams) -> CompressionParams:
    momentum = None if params.mu is None else "nesterov"
    compressed = {"ef": params.ef, "ef_decay": params.ef_decay, "momentum": momentum}
    more = compressed if "compressor" in candidate else {}
    return parse({**candidate, **more, "hierarchical": params.hierarchical}, params.mu)

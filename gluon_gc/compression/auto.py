"""The compressors among which "auto" chooses, by the accuracy that is to be kept."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .params import CompressionParams, parse

PLAIN = "none"
"""The name of the choice to send a tensor uncompressed."""
_CANDIDATES: Dict[str, Dict[str, Any]] = {
    PLAIN: {},
    "fp16": {"fp16": True},
    "bytegrad": {"compressor": "bytegrad"},
    "onebit": {"compressor": "onebit", "scaling": True},
    "topk": {"compressor": "topk", "k": 0.01},
}
"""compression_params, the most accurate first."""
_ALLOWED: Dict[str, Tuple[str, ...]] = {
    "exact": (PLAIN,),
    "safe": (PLAIN, "fp16", "bytegrad"),
    "aggressive": tuple(_CANDIDATES),
}


def candidates(params: CompressionParams) -> Dict[str, CompressionParams]:
    """The params among which to choose for a tensor with these params, the most accurate first.

    Compressors have the feedback and momentum of `params`, whose `accuracy` is not None.
    """
    return {name: _filled(_CANDIDATES[name], params) for name in _ALLOWED[params.accuracy]}


def _filled(candidate: Dict[str, Any], params: CompressionParams) -> CompressionParams:
    compressed = {"ef": params.ef, "momentum": None if params.mu is None else "nesterov"}
    more = compressed if "compressor" in candidate else {}
    return parse({**candidate, **more, "hierarchical": params.hierarchical}, params.mu)

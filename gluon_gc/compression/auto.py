"""What the compressor "auto" may choose among, by how much accuracy may be given up."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .params import CompressionParams, parse

PLAIN = "none"
"""What a choice calls a tensor that travels as it is."""
_GIVEN: Dict[str, Dict[str, Any]] = {
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
    "aggressive": tuple(_GIVEN),
}


def candidates(params: CompressionParams) -> Dict[str, CompressionParams]:
    """What a tensor may be compressed with if it has these params, the most accurate first.

    Compressors have the feedback and momentum of `params`, whose `accuracy` is not None.
    """
    return {name: _filled(_GIVEN[name], params) for name in _ALLOWED[params.accuracy]}


def _filled(given: Dict[str, Any], params: CompressionParams) -> CompressionParams:
    compressed = {"ef": params.ef, "momentum": None if params.mu is None else "nesterov"}
    more = compressed if "compressor" in given else {}
    return parse({**given, **more, "hierarchical": params.hierarchical}, params.mu)

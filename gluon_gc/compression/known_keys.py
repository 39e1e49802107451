"""The keys of compression_params, and the compressors that they are for."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Type

import numpy as np

from ..options import Option, nearest, one_of, switch
from .base import Compressor, registry

AUTO = "auto"
"""The name with which a user leaves the choice of a compressor to `gluon_gc.auto`."""


def _names(kinds: Iterable[Type[Compressor]]) -> str:
    return ", ".join(kind.name for kind in kinds) or "none"


def common() -> Dict[str, Option]:
    """The keys that are no compressor's own."""
    accumulating = _names(kind for kind in registry.values() if kind.traits.accumulates)
    return {
        "compressor": one_of(
            (*registry, AUTO), f"the algorithm; falsy: none; {AUTO}: chosen for each gradient"
        ),
        "ef": one_of(
            ("vanilla", "corrected", "sparse"),
            "error feedback; corrected: by the ratio of learning rates; sparse: BytePS's name for "
            "that with randomk, whose workers and servers draw the same elements",
        ),
        "momentum": one_of(
            ("nesterov",),
            "momentum before the compressor, with the value of the optimizer's, which then applies "
            f"none. Always on with {accumulating}, in the optimizer's form unless this asks for "
            "Nesterov's",
        ),
        "fp16": switch("what no compressor handles travels as float16"),
        "hierarchical": switch(
            "on by default: where a machine has several workers, they sum what they have, and "
            "only that travels, compressed"
        ),
        "exchange": one_of(
            ("two_way", "gather"),
            "two_way: aggregators sum, and compress the sum; gather: all workers get all payloads "
            f"and sum them, by default (and always) for {accumulating}. What can be summed as it "
            "is is, either way",
        ),
        "accuracy": one_of(
            ("exact", "safe", "aggressive"),
            "how much of it may be given up. exact: nothing is compressed; safe (the default): "
            "each element is rounded, by fp16 or bytegrad; aggressive: onebit and topk too",
        ),
    }


def users_of(key: str) -> Dict[str, Option]:
    """The compressors that a key is for, each with the option that it is there."""
    shared = common().get(key)
    if key == "accuracy":
        return {AUTO: shared}
    if shared is None:
        kinds = registry.items()
        return {name: kind.keys()[key] for name, kind in kinds if key in kind.keys()}
    accumulates = {name: kind.traits.accumulates for name, kind in registry.items()}
    return {name: shared for name in registry if key != "ef" or not accumulates[name]}


def keys() -> Dict[str, Option]:
    """All keys, the common ones first. A key of several compressors has the first one's option."""
    options = common()
    for kind in registry.values():
        for key, option in kind.keys().items():
            options.setdefault(key, option)
    return options


_OF_MXNET = ("type", "threshold")  # keys of gluon.Trainer's compression_params
_FOR_ALL = ("compressor", "fp16", "hierarchical")  # keys that mean something without one, too
_FOR_AUTO = ("compressor", "accuracy", "ef", "momentum", "hierarchical")


def is_for(key: str, name: Optional[str]) -> bool:
    """Whether a key has a meaning with the compressor of this name, or without one."""
    if name == AUTO:
        return key in _FOR_AUTO
    return key in _FOR_ALL or name in users_of(key)


def keys_that_are_on(params: Mapping[str, Any]) -> Dict[str, Any]:
    """The keys that are not switched off, with their values; a switch may be False."""
    known = keys()
    on = {}
    for key, value in params.items():
        if key not in known:
            if key in _OF_MXNET:
                raise ValueError(
                    f"compression_params[{key!r}] is of MXNet's own compression, which gluon_gc "
                    "does not have: name one of gluon_gc's, as {'compressor': 'onebit', "
                    f"'scaling': True, 'ef': 'vanilla'}}; got {value!r}"
                )
            raise ValueError(
                f"compression_params has no key {key!r}; did you mean '{nearest(key, known)}'? "
                f"The keys are {', '.join(known)}"
            )
        off = value is None or (isinstance(value, str) and not value)
        if isinstance(value, (bool, np.bool_)) and not value:
            off = bool not in known[key].types
        if not off:
            on[key] = value
    return on

"""The keys of compression_params, and the compressors that each key belongs to."""

from __future__ import annotations

import warnings
from typing import Any, Mapping

import numpy as np

from ..options import Option, listed, nearest, one_of, real, switch
from .base import registry

AUTO = "auto"
"""The compressor name with which `gluon_gc.auto` chooses a compressor for each gradient."""


def common() -> dict[str, Option]:
    """The keys that do not belong to one compressor."""
    names = [name for name, kind in registry.items() if kind.traits.accumulates]
    accumulating = ", ".join(names) or "none"
    return {
        "compressor": one_of(
            (*registry, AUTO), f"the compressor. '{AUTO}' chooses one for each gradient"
        ),
        "ef": one_of(
            ("vanilla", "corrected", "sparse"),
            "error feedback. 'vanilla': add the residual to the next gradient. 'corrected': first "
            "multiply it by the previous over the current learning rate. 'sparse': BytePS's name "
            "for 'corrected' with randomk",
        ),
        "ef_decay": real(
            lambda v: 0 < v <= 1,
            "a number above 0 and at most 1",
            "multiply the residual by this number before it is added to the next gradient, on "
            "workers and servers. Default: 1, which loses nothing. Needs 'ef'",
        ),
        "momentum": one_of(
            ("nesterov",),
            "apply momentum before compression, in Nesterov's form, instead of in the optimizer. "
            f"{accumulating} always does, without this key in the optimizer's form",
        ),
        "fp16": switch("send gradients that are not compressed as float16"),
        "hierarchical": switch(
            "first sum the gradients of a machine's workers, then compress the sum. On by default"
        ),
        "exchange": one_of(
            ("two_way", "gather"),
            "'two_way' (default): servers sum the payloads and compress the sum. 'gather': every "
            f"worker gets and sums all payloads; default and only choice for {accumulating}. No "
            "effect with randomk",
        ),
        "inner": Option(
            (Mapping,),
            lambda value: True,
            "a dict with 'compressor' and its options",
            "with PyTorch, compress the gradients that the workers of a machine sum first, without "
            f"error feedback, on their way to that sum. For {listed(inner_compressors(), 'or')}",
        ),
        "accuracy": one_of(
            ("exact", "safe", "aggressive"),
            "what 'auto' may choose. 'exact': no compression. 'safe' (default): also fp16 and "
            "bytegrad. 'aggressive': also onebit and topk, or with Adam blockwise",
        ),
    }


def inner_compressors() -> list[str]:
    """The compressors that keep no state, and whose payloads are decoded before they are summed."""
    return [
        name
        for name, kind in registry.items()
        if not (kind.traits.accumulates or kind.traits.summable)
    ]


def users_of(key: str) -> dict[str, Option]:
    """The compressors that a key belongs to, each with its option of that name."""
    shared = common().get(key)
    if key == "accuracy":
        return {AUTO: shared}
    if shared is None:
        kinds = registry.items()
        return {name: kind.keys()[key] for name, kind in kinds if key in kind.keys()}
    accumulates = {name: kind.traits.accumulates for name, kind in registry.items()}
    has_feedback = key in ("ef", "ef_decay")
    return {name: shared for name in registry if not has_feedback or not accumulates[name]}


def keys() -> dict[str, Option]:
    """All keys, the common ones first. A key of several compressors has the first one's option."""
    options = common()
    for kind in registry.values():
        for key, option in kind.keys().items():
            options.setdefault(key, option)
    return options


_OF_MXNET = ("type", "threshold")  # keys of gluon.Trainer's compression_params
_FOR_ALL = ("compressor", "fp16", "hierarchical")  # keys that need no compressor
_FOR_AUTO = ("compressor", "accuracy", "ef", "ef_decay", "momentum", "hierarchical", "inner")


def is_for(key: str, name: str | None) -> bool:
    """Whether a key has an effect with the compressor of this name, or without a compressor."""
    if name == AUTO:
        return key in _FOR_AUTO
    return key in _FOR_ALL or name in users_of(key)


def keys_that_are_on(params: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are not switched off by None, False or "", with their values.

    False is a value for options of type bool. Raises ValueError if there is no such key.
    """
    known = keys()
    enabled = {}
    for key, value in params.items():
        if key not in known:
            if key in _OF_MXNET:
                raise ValueError(
                    f"compression_params[{key!r}] is a key of MXNet's own compression, which "
                    "gluon_gc does not have: name a compressor, such as {'compressor': 'onebit', "
                    f"'scaling': True, 'ef': 'vanilla'}}; got {value!r}"
                )
            raise ValueError(
                f"compression_params has no key {key!r}; did you mean '{nearest(key, known)}'? "
                f"The keys are {', '.join(known)}"
            )
        disabled = value is None or (isinstance(value, str) and not value)
        if isinstance(value, (bool, np.bool_)) and not value:
            disabled = bool not in known[key].types
        if not disabled:
            enabled[key] = value
    return enabled


def ignored(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys of valid compression_params that belong to other compressors, so have no effect.

    BytePS's example scripts pass all keys, with a default value where they do not use one. Keys
    with such a value (`Option.unused`) are left out.
    """
    enabled = keys_that_are_on(params or {})
    name = enabled.get("compressor")
    known = keys()
    return {
        key: value
        for key, value in enabled.items()
        if not is_for(key, name) and value and value != known[key].unused
    }


def warn_of_ignored(*several: Mapping[str, Any] | None) -> None:
    """Warn once of all keys that are ignored in these params.

    The warning points at the line that called the caller.
    """
    texts = []
    for params in several:
        for key, value in ignored(params).items():
            name = params.get("compressor")
            reason = f"is not for {name}" if name else "needs a compressor"
            text = f"'{key}' {reason}, got {value!r}"
            if text not in texts:
                texts.append(text)
    if texts:
        message = f"compression_params has keys that are ignored: {'; '.join(texts)}"
        warnings.warn(message, stacklevel=3)

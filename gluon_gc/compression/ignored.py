"""Warns of keys of compression_params that have no effect with the chosen compressor."""

from __future__ import annotations

import warnings
from typing import Any, Dict, Mapping, Optional

from .known_keys import is_for, keys, keys_that_are_on


def ignored(params: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
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


def warn_of_ignored(*several: Optional[Mapping[str, Any]]) -> None:
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

"""Checks what an algorithm requires of compression_params, parameters and workers."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import numpy as np
import xxhash

from ..compression.known_keys import AUTO
from ..exchange.agreement import Facts
from ..log import logger
from ..options import listed
from .base import Algorithm, registry


def require_fitting_compression(algorithm: Algorithm, *compressions: Any) -> None:
    """Raise ValueError for options that do not work with an algorithm.

    Options that hardly make sense are logged as a warning. `compressions` are compression_params as
    the user gave them, not yet checked.
    """
    name = algorithm.name
    for params in compressions:
        if not isinstance(params, Mapping):
            continue
        if params.get("momentum"):
            raise ValueError(
                f"compression_params['momentum'] must be left out with algorithm {name}, got "
                f"{params['momentum']!r}: the optimizer applies its momentum itself"
            )
        automatic = params.get("compressor") == AUTO
        if automatic and not algorithm.chosen_option:
            able = [kind.name for kind in registry.values() if kind.chosen_option]
            raise ValueError(
                f"compression_params['compressor'] must name a compressor with algorithm {name}, "
                f"got '{AUTO}', which is for averaged gradients and for {listed(able, 'and')}: use "
                "'onebit' with 'scaling' and 'ef'"
            )
        if algorithm.compresses and automatic and params.get("accuracy") != "aggressive":
            raise ValueError(
                f"compression_params['accuracy'] must be 'aggressive' with algorithm {name} and "
                f"the compressor '{AUTO}', got {params.get('accuracy', 'safe')!r}: others do not "
                "allow the algorithm"
            )
        if algorithm.compresses and not automatic and params.get("compressor") is not None:
            raise ValueError(
                f"compression_params['compressor'] must be left out with algorithm {name}, got "
                f"{params['compressor']!r}: the algorithm compresses gradients itself"
            )
        if params.get("compressor") == "onebit" and not params.get("scaling"):
            logger.warning(
                "onebit without 'scaling' sends signs only, so each element of a vector of "
                "algorithm %s arrives as 1 or -1: set 'scaling' to True",
                name,
            )


def require_on_nonfinite(algorithm: Algorithm, value: str, supported: Sequence[str]) -> None:
    """Raise ValueError unless an algorithm supports this value of on_nonfinite.

    The front end supports the values `supported` with any algorithm. "skip" needs an algorithm
    whose workers skip the same steps.
    """
    if value in supported or (value == "skip" and algorithm.averages_gradients):
        return
    words = [f"'{word}'" for word in (*supported, *["skip"] * algorithm.averages_gradients)]
    raise ValueError(
        f"on_nonfinite must be {listed(words, 'or')} with algorithm {algorithm.name}, got "
        f"{value!r}: to skip a worker's gradient, set it to zeros before step"
    )


def require_floats(name: str, parameter: str, dtype: str) -> None:
    """Raise ValueError unless a parameter has a dtype that an algorithm can average."""
    if dtype not in ("float32", "float64"):
        raise ValueError(
            f"algorithm {name} needs parameters of float32 or float64, but parameter {parameter} "
            f"is {dtype}: keep the model in float32, or leave out algorithm"
        )


def digest(array: np.ndarray) -> str:
    """A 64-bit hash of an array's bytes, as hexadecimal text."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array))


def first_values(algorithm: Algorithm, arrays: Iterable[tuple[str, np.ndarray]]) -> Facts:
    """Facts that show whether all workers begin with the same parameters.

    The shared state of an algorithm is made from the parameters, so these must be equal. They must
    be equal too if the algorithm averages gradients. For others, the result is empty. An array may
    be freed when the next one is taken.
    """
    if not (algorithm.shared or algorithm.averages_gradients):
        return []
    return [
        (f"parameter {name}", {"values with the digest": digest(array)}) for name, array in arrays
    ]

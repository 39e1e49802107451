"""What an algorithm requires of compression_params, of the parameters, and of all workers."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Tuple

import numpy as np
import xxhash

from ..agreement import Facts
from ..compression.known_keys import AUTO
from .base import Algorithm


def require_fitting_compression(name: str, *compressions: Any) -> None:
    """Raise ValueError if compression_params ask for something that only averaged gradients have.

    Parameters
    ----------
    name : str
        The algorithm's.
    *compressions
        compression_params as a user gives them. `compression.parse` refuses other values.
    """
    for params in compressions:
        if not isinstance(params, Mapping):
            continue
        if params.get("momentum"):
            raise ValueError(
                f"compression_params['momentum'] must be left out with algorithm {name}, got "
                f"{params['momentum']!r}: the optimizer applies its momentum itself"
            )
        if params.get("compressor") == AUTO:
            raise ValueError(
                f"compression_params['compressor'] must name a compressor with algorithm {name}, "
                f"got '{AUTO}', which chooses for gradients that travel in every step"
            )


def require_floats(name: str, parameter: str, dtype: str) -> None:
    """Raise ValueError unless an algorithm can average a parameter of this dtype."""
    if dtype not in ("float32", "float64"):
        raise ValueError(
            f"algorithm {name} needs parameters of float32 or float64, but parameter {parameter} "
            f"is {dtype}: keep the model in float32, or leave out algorithm"
        )


def digest(array: np.ndarray) -> str:
    """A hash of an array's bits, 64 bits long."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array))


def first_values(algorithm: Algorithm, arrays: Iterable[Tuple[str, np.ndarray]]) -> Facts:
    """Facts that differ if workers begin with other values of a parameter.

    Shared state is made from the parameters, so they must be equal on all workers. Without shared
    state there is nothing to compare.

    Parameters
    ----------
    algorithm : Algorithm
    arrays : iterable of (str, array)
        The parameters' names and values. Each array is only needed until the next one is taken.
    """
    if not algorithm.shared:
        return []
    return [
        (f"parameter {name}", {"values with the digest": digest(array)}) for name, array in arrays
    ]

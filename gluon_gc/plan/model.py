"""The shapes of a model's parameters: from torchvision, from a file, or for their number."""

from __future__ import annotations

import json
import math
import struct
from itertools import chain
from pathlib import Path
from typing import Dict, Tuple

from .front_end import planning

_TORCHVISION = "torchvision:"
_FLOATS = ("F16", "BF16", "F32", "F64")  # dtypes of safetensors
_MOST_HEADER_BYTES = 100_000_000  # as in the package safetensors
_MATRIX = 2**20  # elements of a matrix, if only the number of parameters is known
_STATISTICS = ("running_mean", "running_var")  # of BatchNorm: they have no gradients

Shapes = Dict[str, Tuple[int, ...]]


def shapes_of(name: str) -> Shapes:
    """Return the shapes for the argument --model. ValueError: it names no model."""
    if name.startswith(_TORCHVISION):
        found = _torchvision(name[len(_TORCHVISION) :])
    elif not Path(name).is_file():
        raise ValueError(
            f"--model must be torchvision:NAME or a file (.safetensors, .pt, .pth), got {name!r}"
        )
    elif name.endswith(".safetensors"):
        found = _safetensors(Path(name))
    else:
        found = planning().state_dict_shapes(name)
    shapes = {
        each: shape
        for each, shape in found.items()
        if math.prod(shape) and not each.endswith(_STATISTICS)
    }
    if not shapes:
        raise ValueError(f"--model {name} has no parameters")
    return shapes


def matrices(elements: int) -> Shapes:
    """Return the shapes of nearly square matrices that have this number of elements in all."""
    count = max(1, round(elements / _MATRIX))
    side = max(1, math.isqrt(elements // count))
    rows, rest = divmod(elements, side)
    shapes = {f"matrix{i}": (rows // count + (i < rows % count), side) for i in range(count)}
    return {**shapes, "rest": (rest,)} if rest else shapes


def _torchvision(name: str) -> Shapes:
    try:
        return planning().torchvision_shapes(name)
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise ValueError(
            f"--model {_TORCHVISION}{name} needs torchvision, which is not installed"
        ) from None
    except ValueError as error:
        raise ValueError(f"--model {_TORCHVISION}{name}: {error}") from None


def _safetensors(path: Path) -> Shapes:
    """Read the header: 8 bytes with its length, then JSON with each tensor's dtype and shape."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MOST_HEADER_BYTES:
                raise ValueError
            header = json.loads(file.read(length))
        shapes = {
            name: tuple(map(int, entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] in _FLOATS
        }
        if min(chain.from_iterable(shapes.values()), default=0) < 0:
            raise ValueError
        return shapes
    except (struct.error, ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"--model {path} is not a safetensors file") from None

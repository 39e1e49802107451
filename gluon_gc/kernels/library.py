"""The C interface of operators/core/capi.cpp, and how NumPy arrays are handed to it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Optional

import numpy as np

from .. import env

pointer, size, integer, double = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double
_ISAS = ("scalar", "avx2", "avx512")


def _load() -> ctypes.CDLL:
    path = Path(env.get("GLUON_GC_LIBRARY") or Path(__file__).parent.with_name("libgluon_gc.so"))
    if not path.exists():
        raise ImportError(
            f"{path} does not exist: install gluon_gc, or if it is, start Python elsewhere than in "
            "its checkout"
        )
    return ctypes.CDLL(str(path))


library = _load()


def declare(name: str, result: Any, *arguments: Any) -> None:
    """Tell ctypes the types of the function gluon_gc_NAME."""
    function = getattr(library, "gluon_gc_" + name)
    function.restype, function.argtypes = result, arguments


declare("best_isa", integer)
declare("limit_sum", ctypes.c_float, pointer, size, integer, integer)
for _name in ("fill", "add_constant"):
    declare("limit_" + _name, None, pointer, size, integer, integer)
for _name in ("copy", "add", "narrow", "widen"):
    declare("limit_" + _name, None, pointer, pointer, size, integer, integer)
declare("limit_add_twice", None, pointer, pointer, pointer, size, integer, integer)


def isas() -> tuple[str, ...]:
    """The instruction sets that this machine runs, the slowest first."""
    return _ISAS[: library.gluon_gc_best_isa() + 1]


def isa_number(name: Optional[str]) -> int:
    available = isas()
    if name is None:
        return len(available) - 1
    if name not in available:
        raise ValueError(f"isa must be one of {available} on this machine, got {name!r}")
    return available.index(name)


def itemsize_of(dtype: Any) -> int:
    """What tells C the T of a kernel."""
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype}")
    return dtype.itemsize


def address_of(
    name: str, array: Optional[np.ndarray], size: int, dtype, writes: bool = False
) -> Optional[int]:
    if array is None:
        return None
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.size != size:
        raise ValueError(f"{name} must have {size} elements, got {array.size}")
    if not array.flags.c_contiguous or (writes and not array.flags.writeable):
        raise ValueError(f"{name} must be C-contiguous{' and writeable' if writes else ''}")
    return array.ctypes.data


def output_of(name: str, array: Optional[np.ndarray], size: int, dtype) -> np.ndarray:
    if array is None:
        return np.empty(size, dtype)
    address_of(name, array, size, dtype, writes=True)
    return array

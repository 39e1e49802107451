"""Casts between float32 and float16."""

from __future__ import annotations

from typing import Optional

import numpy as np

from .library import address_of, isa_number, library, output_of


def half_from_float(
    x: np.ndarray,
    scale: float = 1.0,
    *,
    out: Optional[np.ndarray] = None,
    threads: int = 1,
    isa: Optional[str] = None,
) -> np.ndarray:
    """``x * scale`` of a float32 array as float16, rounded to nearest, ties to even."""
    out = output_of("out", out, x.size, np.float16)
    library.gluon_gc_half_from_float(
        address_of("x", x, x.size, np.float32),
        x.size,
        scale,
        out.ctypes.data,
        threads,
        isa_number(isa),
    )
    return out


def float_from_half(
    x: np.ndarray, *, out: Optional[np.ndarray] = None, threads: int = 1, isa: Optional[str] = None
) -> np.ndarray:
    """A float16 array as float32."""
    out = output_of("out", out, x.size, np.float32)
    library.gluon_gc_float_from_half(
        address_of("x", x, x.size, np.float16), x.size, out.ctypes.data, threads, isa_number(isa)
    )
    return out

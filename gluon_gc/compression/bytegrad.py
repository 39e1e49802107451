"""bytegrad: 8-bit quantisation between the minimum and the maximum of a chunk."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register


@register
@dataclass(frozen=True)
class ByteGrad(Compressor):
    """Round each element to the nearest of 256 evenly spaced levels from min to max.

    For a chunk x:

        lo = min(x), hi = max(x)
        q = round((x - lo) / (hi - lo) * 255)     one byte an element
        decoded = lo + q * (hi - lo) / 255

    The payload has lo, hi and the bytes. If lo == hi, it has no bytes.

    References
    ----------
    Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021.
    """

    name = "bytegrad"
    description = "1 byte an element: the nearest of 256 even levels between minimum and maximum"
    full = True  # except if all elements are equal

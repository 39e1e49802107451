"""bytegrad: one byte an element, between the least and the largest."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register

_LENGTH_BYTES = 4


@register
@dataclass(frozen=True)
class ByteGrad(Compressor):
    """Each element rounded to the nearest of 256 even levels from min(x) to max(x).

    Where all elements are equal, nothing travels but that number.

    References
    ----------
    Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021.
    """

    name = "bytegrad"
    description = "1 byte an element: the nearest of 256 even levels from the least to the largest"
    variable = True
    hierarchical = True

    def payload_bytes(self, n: int, itemsize: int) -> int:
        return _LENGTH_BYTES + 2 * itemsize + n

"""bytegrad: one byte an element, between the least and the largest."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register


@register
@dataclass(frozen=True)
class ByteGrad(Compressor):
    """The nearest of 256 even levels from the least to the largest element.

    References
    ----------
    Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021.
    """

    name = "bytegrad"
    description = "1 byte an element: the nearest of 256 even levels from the least to the largest"
    full = True  # but where all elements are equal

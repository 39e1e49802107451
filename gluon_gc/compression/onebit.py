"""onebit: the sign of each element, scaled by the mean magnitude."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import switch
from .base import Compressor, register


@register
@dataclass(frozen=True)
class Onebit(Compressor):
    """1 bit an element: +scale, or -scale where x < 0.

    References
    ----------
    Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback"
    (dist-EF-SGDM), NeurIPS 2019.
    """

    name = "onebit"
    description = "1 bit an element: its sign, scaled by the mean magnitude"

    scaling: bool = switch("scale the signs by the mean magnitude, instead of 1").field(False)

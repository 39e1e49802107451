"""onebit: the sign of each element, scaled by the mean magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

from mxnet.ndarray import NDArray

from .base import Compressor, register


@register
@dataclass(frozen=True)
class Onebit(Compressor):
    """1 bit an element: +scale, or -scale where x < 0.

    Parameters
    ----------
    scaling : bool
        scale is the mean of abs(x) if true, else 1.

    References
    ----------
    Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback"
    (dist-EF-SGDM), NeurIPS 2019.
    """

    name = "onebit"
    description = "1 bit an element: its sign, scaled by the mean magnitude"

    scaling: bool = False

    def payload_bytes(self, n: int, itemsize: int) -> int:
        return 4 * -(-n // 32) + itemsize

    def memory_sizes(self, n: int, itemsize: int) -> Tuple[int, ...]:
        return n, 1  # the last corrected gradient, and the scale that it was decoded with

    def restore(self, memory: Sequence[NDArray], residual: NDArray) -> None:
        corrected, scale = memory
        corrected[:] = residual
        scale[:] = 0  # so that e = corrected - (+-scale) is the residual itself

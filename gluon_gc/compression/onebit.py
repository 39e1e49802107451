"""onebit: the sign of each element, and one scale for each chunk."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import switch
from .base import Compressor, register


@register
@dataclass(frozen=True)
class Onebit(Compressor):
    """Send one bit an element: its sign.

    For a chunk x of n elements:

        scale = sum(abs(x)) / n with `scaling`, else 1
        decoded = -scale where x < 0, else +scale

    References
    ----------
    Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", Interspeech 2014: signs with error feedback.
    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018: signs
    without scale.
    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    ICML 2019 (EF-SignSGD): this scale, with error feedback.
    Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback"
    (dist-EF-SGDM), NeurIPS 2019: compression in both directions, with Nesterov momentum.
    """

    name = "onebit"
    description = "1 bit an element: its sign, with the mean magnitude of a chunk as scale"

    scaling: bool = switch("multiply the signs by the mean magnitude of the chunk").field(False)

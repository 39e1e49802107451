"""dithering: each element rounded at random to one of a few levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .base import Compressor, register

_HEADER_BYTES = 8  # length and coding
_MAX_LEVELS = {"linear": 2**23 - 1, "natural": 31}


@register
@dataclass(frozen=True)
class Dithering(Compressor):
    """Each element rounded at random, so that the mean is the element, to one of k levels and 0.

    A payload takes the smaller of fixed width, 1 + ceil(log2(k + 1)) bits an element, and
    Elias-delta codes of the distances between what is not 0.

    Parameters
    ----------
    k : int
        Number of levels: at most 8388607, or 31 if they are natural.
    partition : str
        "linear": norm * i / k, i = 1 to k. "natural": norm / 2^i, i = 0 to k - 1.
    normalize : str
        The norm: "max", the largest magnitude, or "l2".
    seed : int, optional
        Of the random draws. None: another one in every run.

    References
    ----------
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017 (linear); Horvath et al., "Natural Compression for Distributed Deep Learning", 2019
    (natural).
    """

    name = "dithering"
    description = "each element rounded at random to one of k levels, unbiased"
    draws = "apart"
    variable = True

    k: int
    partition: str = "linear"
    normalize: str = "max"
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        most = _MAX_LEVELS[self.partition]
        if not 1 <= self.k <= most or self.k % 1:
            raise ValueError(
                f"compression_params['k'] must be a whole number from 1 to {most} for "
                f"{self.partition} dithering, got {self.k!r}"
            )
        object.__setattr__(self, "k", int(self.k))

    def payload_bytes(self, n: int, itemsize: int) -> int:
        planes = 1 + self.k.bit_length()
        return -(-(_HEADER_BYTES + itemsize + 2 * planes * -(-n // 16)) // 4) * 4

"""dithering: each element rounded at random to one of a few levels."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from typing import Optional

from ..options import Option, one_of, switch
from .base import Compressor, register
from .option import seed

_MAX_LEVELS = {"linear": 2**23 - 1, "natural": 31}


@register
@dataclass(frozen=True)
class Dithering(Compressor):
    """Each element rounded at random, so that the mean is the element, to one of k levels and 0.

    A payload takes the smaller of fixed width, 1 + ceil(log2(k + 1)) bits an element, and
    Elias-delta codes of the distances between what is not 0; where a GPU makes it, fixed width.

    References
    ----------
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017 (linear); Horvath et al., "Natural Compression for Distributed Deep Learning", 2019
    (natural).
    """

    name = "dithering"
    description = "each element rounded at random to one of k levels, unbiased"

    k: int = Option(
        (numbers.Real,),
        lambda k: k >= 1 and k % 1 == 0,
        "a whole number >= 1",
        "number of levels beside 0: at most 8388607, or 31 if they are natural",
        unused=1,
    ).field()
    partition: str = one_of(
        ("linear", "natural"),
        "linear: levels norm * i / k, i = 1 to k; natural: norm / 2^i, i = 0 to k - 1",
        unused="linear",
    ).field("linear")
    normalize: str = one_of(
        ("max", "l2"), "the norm: the largest magnitude, or the l2 norm", unused="max"
    ).field("max")
    seed: Optional[int] = seed().field(None)
    fixed_width: bool = switch(
        "no Elias codes, as where gradients are on a GPU, which all workers must have alike"
    ).field(False)

    def on_gpu(self) -> Dithering:
        return replace(self, fixed_width=True)

    def __post_init__(self) -> None:
        most = _MAX_LEVELS[self.partition]
        if self.k > most:
            raise ValueError(
                f"compression_params['k'] must be a whole number from 1 to {most} for "
                f"{self.partition} dithering, got {self.k!r}"
            )
        object.__setattr__(self, "k", int(self.k))

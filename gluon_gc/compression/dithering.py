"""dithering: stochastic rounding of each element to one of a few levels."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace

from ..options import Option, one_of, switch
from .base import Compressor, register, seed

_MAX_LEVELS = {"linear": 2**23 - 1, "natural": 31}


@register
@dataclass(frozen=True)
class Dithering(Compressor):
    """Round each element at random to one of the two nearest levels, without bias.

    For a chunk x, with norm = max(abs(x)) or the l2 norm of x:

        linear:   y = abs(x) / norm * k            levels 0, 1, 2, ..., k
        natural:  y = abs(x) / norm * 2^(k - 1)    levels 0, 1, 2, 4, ..., 2^(k - 1)

    then

        a, b = the levels next to y, a <= y < b
        q = b with probability (y - a) / (b - a), else a
        decoded = sign(x) * q * norm / k, or / 2^(k - 1) if natural

    A payload has the norm, and a sign and a level for each element. It uses the smaller of two
    codes. Fixed width takes 1 + ceil(log2(k + 1)) bits an element. The other writes Elias-delta
    codes of the levels that are not 0 and of the distances between them. GPUs write fixed width.

    With a seed, averages are biased, as in BytePS: the sum is rounded with the random numbers of
    worker 0. With levels of the l2 norm, they become several times too large.

    References
    ----------
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017: linear levels.
    Horvath et al., "Natural Compression for Distributed Deep Learning", 2019: natural levels.
    """

    name = "dithering"
    description = "unbiased stochastic rounding of each element to 0 or one of k levels"
    aggregator_repeats = True

    k: int = Option(
        (numbers.Real,),
        lambda k: k >= 1 and k % 1 == 0,
        "a whole number >= 1",
        "number of levels besides 0: at most 8388607, or 31 with 'natural'",
        unused=1,
    ).field()
    partition: str = one_of(
        ("linear", "natural"),
        "linear: levels norm * i / k, i = 1 to k; natural: norm / 2^i, i = 0 to k - 1",
        unused="linear",
    ).field("linear")
    normalize: str = one_of(
        ("max", "l2"), "norm of the chunk: the largest magnitude, or l2", unused="max"
    ).field("max")
    seed: int | None = seed().field(None)
    fixed_width: bool = switch(
        "never use Elias codes (on a GPU always True). Must be the same on all workers"
    ).field(False)

    def on_gpu(self) -> Dithering:
        return replace(self, fixed_width=True)

    def __post_init__(self) -> None:
        max_levels = _MAX_LEVELS[self.partition]
        if self.k > max_levels:
            raise ValueError(
                f"compression_params['k'] must be a whole number from 1 to {max_levels} for "
                f"{self.partition} dithering, got {self.k!r}"
            )
        object.__setattr__(self, "k", int(self.k))

"""dgc (Deep Gradient Compression): the largest elements of the accumulated gradient."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Sequence

from ..options import Option, real, switch, whole
from .base import Compressor, register, seed, share_or_count, value_bits


def _shares(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return bool(values) and all(isinstance(v, numbers.Real) and 0 < v <= 1 for v in values)


@register
@dataclass(frozen=True)
class Dgc(Compressor):
    """Send about ceil(k n) of the n elements of an accumulated gradient, and keep the others.

    Each step, on each worker, for a chunk with gradient g, momentum m and accumulated gradient v:

        m = mu m + g,    v = v + m         classic momentum (momentum correction)
        m = mu (m + g),  v = v + m + g     Nesterov's momentum

    then

        send the elements with abs(v) >= threshold
        v = 0 and m = 0 where an element was sent (m with `momentum_masking` only)

    If values are sent as float16, v keeps what they lose. The threshold is estimated from a sample
    of v. The options have the names and defaults of the reference implementation.

    References
    ----------
    Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
    Training", ICLR 2018.
    """

    name = "dgc"
    description = "the largest elements of the accumulated gradient, with momentum correction"

    k: float | None = share_or_count().field(None)
    compress_ratio: float | None = real(
        lambda v: v > 0 and v != 1,
        "a share between 0 and 1 or its reciprocal",
        "instead of k: the share to send, or its reciprocal (0.001 or 1000)",
    ).field(None)
    sample_ratio: float = real(
        lambda v: 0 < v <= 1,
        "0 < sample_ratio <= 1",
        "share of the elements from which the threshold is estimated; smaller ones count as 0.01",
    ).field(0.01)
    strided_sample: bool = switch(
        "sample at equal distances from a random start, instead of at random places"
    ).field(True)
    compress_upper_bound: float = real(
        lambda v: v >= 1,
        "a number >= 1",
        "raise the threshold if more than this times k elements reach it",
    ).field(1.3)
    compress_lower_bound: float = real(
        lambda v: 0 < v <= 1,
        "0 < compress_lower_bound <= 1",
        "lower the threshold if fewer than this times k elements reach it",
    ).field(0.8)
    max_adaptation_iters: int = whole(
        0, "how many times these bounds may multiply the threshold"
    ).field(10)
    resample: bool = switch(
        "if too many elements reach the threshold, send the k largest instead of raising it"
    ).field(True)
    value_bits: int = value_bits(16, 32).field(32)
    fp16_values: bool = switch("the same as 'value_bits': 16").field(False)
    int32_indices: bool = switch("no effect: indices are packed").field(False)
    warmup_epochs: int = whole(
        -1, "number of warm-up epochs, which send more elements. Call `trainer.set_epoch` in each"
    ).field(-1)
    warmup_coeff: None | float | Sequence[float] = Option(
        (numbers.Real, list, tuple),
        _shares,
        "a number above 0 and at most 1, or a list of them",
        "the share sent in warm-up epoch e, from 0. A list: its element e. A number c: c^(e + 1), "
        "at least k. Default: c = k^(1 / (warmup_epochs + 1))",
    ).field(None)
    momentum_masking: bool = switch("set the momentum of an element to 0 when it is sent").field(
        True
    )
    gradient_clipping: float | None = real(
        lambda v: v > 0,
        "a number > 0",
        "largest l2 norm of a chunk's gradient after division by batch size and number of workers; "
        "a larger gradient is scaled down",
    ).field(None)
    seed: int | None = seed().field(None)

    def __post_init__(self) -> None:
        if self.compress_ratio is not None:
            if self.k is not None:
                raise ValueError(
                    "compression_params have 'k' and 'compress_ratio', which are the same"
                )
            ratio = self.compress_ratio
            object.__setattr__(self, "k", ratio if ratio < 1 else 1 / ratio)
            object.__setattr__(self, "compress_ratio", None)
        if self.k is None:
            raise KeyError(
                "compression_params['k'] is missing; dgc needs "
                f"{self.keys()['k'].allowed}, or 'compress_ratio'"
            )
        if self.fp16_values:
            object.__setattr__(self, "value_bits", 16)
            object.__setattr__(self, "fp16_values", False)
        if isinstance(self.warmup_coeff, (list, tuple)):
            if len(self.warmup_coeff) < self.warmup_epochs:
                raise ValueError(
                    f"compression_params['warmup_coeff'] must have a share for each of the "
                    f"{self.warmup_epochs} warmup_epochs, got {self.warmup_coeff!r}"
                )
            object.__setattr__(self, "warmup_coeff", tuple(self.warmup_coeff))

"""dgc: Deep Gradient Compression, the entries of the accumulated gradient above a threshold."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from ..options import Option, real, switch, whole
from .base import Compressor, register
from .option import seed, share_or_count


def _shares(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return bool(values) and all(isinstance(v, numbers.Real) and 0 < v <= 1 for v in values)


@register
@dataclass(frozen=True)
class Dgc(Compressor):
    """The entries of the accumulated gradient above a sampled threshold; the rest is kept.

    Momentum is applied before the accumulation (momentum correction), and restarts where an entry
    was sent (momentum masking). The options have the names of the reference implementation; about
    ceil(k n) of the n elements of a chunk are sent.

    References
    ----------
    Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
    Training", ICLR 2018.
    """

    name = "dgc"
    description = "the accumulated gradient above a sampled threshold, with momentum correction"

    k: Optional[float] = share_or_count().field(None)
    compress_ratio: Optional[float] = real(
        lambda v: v > 0 and v != 1,
        "a share between 0 and 1 or its reciprocal",
        "the share of the elements that is sent, instead of k: 0.001 and 1000 mean the same",
    ).field(None)
    sample_ratio: float = real(
        lambda v: 0 < v <= 1,
        "0 < sample_ratio <= 1",
        "share of the elements that the threshold is estimated from, at least 0.01",
    ).field(0.01)
    strided_sample: bool = switch(
        "take the sample at even distances from a random start, instead of at random"
    ).field(True)
    compress_upper_bound: float = real(
        lambda v: v >= 1,
        "a number >= 1",
        "times k: more elements above the threshold are too many",
    ).field(1.3)
    compress_lower_bound: float = real(
        lambda v: 0 < v <= 1,
        "0 < compress_lower_bound <= 1",
        "times k: fewer elements above the threshold are too few",
    ).field(0.8)
    max_adaptation_iters: int = whole(
        0, "how often the threshold is multiplied by one of these bounds"
    ).field(10)
    resample: bool = switch(
        "of too many elements take the largest, instead of a higher threshold"
    ).field(True)
    fp16_values: bool = switch("values travel as float16").field(False)
    int32_indices: bool = switch(
        "accepted, without effect: indices always travel in 32 bits"
    ).field(False)
    warmup_epochs: int = whole(
        -1,
        "epochs in which more is sent, less and less; `trainer.set_epoch` says which it is",
    ).field(-1)
    warmup_coeff: Union[None, float, Sequence[float]] = Option(
        (numbers.Real, list, tuple),
        _shares,
        "a number above 0 and at most 1, or a list of them",
        "the share of epoch e of the warm-up: the list's, or the number to the power of e + 1; by "
        "default k to the power of 1 / (warmup_epochs + 1)",
    ).field(None)
    momentum_masking: bool = switch("momentum restarts where a value was sent").field(True)
    gradient_clipping: Optional[float] = real(
        lambda v: v > 0,
        "a number > 0",
        "largest l2 norm of a chunk of what a worker adds: its gradient divided by batch size and "
        "number of workers",
    ).field(None)
    seed: Optional[int] = seed().field(None)

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
        if isinstance(self.warmup_coeff, (list, tuple)):
            if len(self.warmup_coeff) < self.warmup_epochs:
                raise ValueError(
                    f"compression_params['warmup_coeff'] must have a share for each of the "
                    f"{self.warmup_epochs} warmup_epochs, got {self.warmup_coeff!r}"
                )
            object.__setattr__(self, "warmup_coeff", tuple(self.warmup_coeff))

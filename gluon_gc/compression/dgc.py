"""dgc: Deep Gradient Compression, the entries of the accumulated gradient above a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Union

from .base import Compressor, refuse_whole_share, register

_LENGTH_BYTES = 4
_INDEX_BYTES = 4
_LEAST_SAMPLE_RATIO = 0.01


@register
@dataclass(frozen=True)
class Dgc(Compressor):
    """The entries of the accumulated gradient above a sampled threshold; the rest is kept.

    Momentum is applied before the accumulation (momentum correction), and restarts where an entry
    was sent (momentum masking).

    Parameters
    ----------
    k : float
        0 < k < 1: a share of the elements of each chunk, ceil(k n) of them. k >= 1: a whole number
        of them, or all where there are fewer. About so many are sent.
    sample_ratio : float
        Share of the elements that the threshold is estimated from.
    strided_sample : bool
        The sample is taken at even distances from a random start, else at random.
    compress_upper_bound, compress_lower_bound : float
        Times k: how many or how few elements above the threshold are accepted.
    max_adaptation_iters : int
        How often the threshold is multiplied by one of the bounds until the number is accepted.
    resample : bool
        If there are too many, the k largest of them are taken instead.
    fp16_values : bool
        Values travel as float16.
    int32_indices : bool
        For the reference implementation's sake: indices always have 32 bits here.
    warmup_epochs : int
        In so many epochs more is sent.
    warmup_coeff : float or sequence of float, optional
        The share of each of these epochs, or what it is multiplied by from one to the next.
    momentum_masking : bool
        Momentum restarts from zero where an entry was sent.
    gradient_clipping : float, optional
        Largest l2 norm of a chunk of the gradient, before momentum.
    seed : int, optional
        Of the sample. None: another one in every run.

    References
    ----------
    Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
    Training", ICLR 2018.
    """

    name = "dgc"
    description = "the accumulated gradient above a sampled threshold, with momentum correction"
    draws = "apart"
    variable = True
    accumulates = True

    k: float
    sample_ratio: float = 0.01
    strided_sample: bool = True
    compress_upper_bound: float = 1.3
    compress_lower_bound: float = 0.8
    max_adaptation_iters: int = 10
    resample: bool = True
    fp16_values: bool = False
    int32_indices: bool = False
    warmup_epochs: int = -1
    warmup_coeff: Union[None, float, Sequence[float]] = None
    momentum_masking: bool = True
    gradient_clipping: Optional[float] = None
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        refuse_whole_share(self.k)
        if isinstance(self.warmup_coeff, (list, tuple)):
            if len(self.warmup_coeff) < self.warmup_epochs:
                raise ValueError(
                    f"compression_params['warmup_coeff'] must have a share for each of the "
                    f"{self.warmup_epochs} warmup_epochs, got {self.warmup_coeff!r}"
                )
            object.__setattr__(self, "warmup_coeff", tuple(self.warmup_coeff))

    def ratio(self, n: int, epoch: Optional[int]) -> float:
        """The share of n elements that is sent in an epoch; None: after the warm-up."""
        ratio = self.k if self.k < 1 else min(1.0, self.k / n)
        if epoch is None or epoch >= self.warmup_epochs:
            return ratio
        if isinstance(self.warmup_coeff, tuple):
            return self.warmup_coeff[epoch]
        factor = self.warmup_coeff or ratio ** (1 / (self.warmup_epochs + 1))
        return max(factor ** (epoch + 1), ratio)

    def _count(self, n: int, epoch: Optional[int]) -> int:
        """How many of n elements are sent in an epoch, at most."""
        return math.ceil(n * self.ratio(n, epoch)) if n else 0

    def _most(self, n: int) -> int:
        """How many are sent in any epoch, at most."""
        return max(self._count(n, epoch) for epoch in (None, *range(self.warmup_epochs)))

    def payload_bytes(self, n: int, itemsize: int) -> int:
        value_bytes = 2 if self.fp16_values else itemsize
        return _LENGTH_BYTES + self._most(n) * (_INDEX_BYTES + value_bytes)

    def attributes(self, n: int, epoch: Optional[int] = None) -> Dict[str, object]:
        ratio = self.ratio(n, epoch) if n else 1.0
        samples, stride = sample_plan(n, ratio, max(self.sample_ratio, _LEAST_SAMPLE_RATIO))
        return {
            "selects": self._count(n, epoch),
            "most": self._most(n),
            "samples": samples,
            "top": math.ceil(samples * ratio),
            "stride": stride,
            "max_norm": self.gradient_clipping or 0,
            "strided_sample": self.strided_sample,
            "compress_upper_bound": self.compress_upper_bound,
            "compress_lower_bound": self.compress_lower_bound,
            "max_adaptation_iters": self.max_adaptation_iters,
            "resample": self.resample,
            "fp16_values": self.fp16_values,
            "momentum_masking": self.momentum_masking,
        }


def sample_plan(n: int, ratio: float, sample_ratio: float) -> tuple[int, int]:
    """Number of elements in the sample of n, and the distance between them.

    As in the reference implementation: at least two of them are expected above the threshold, and
    the distance is odd, since powers of two may be a tensor's row length.
    """
    least = max(math.ceil(n * sample_ratio), math.ceil(2 / ratio))
    if sample_ratio >= 1 or ratio >= 1 or n <= math.ceil(2 / ratio):
        return n, 1
    stride = math.ceil(n / least / 32) * 32 + 1
    while n // stride < least:
        stride -= 8
    return n // stride, stride

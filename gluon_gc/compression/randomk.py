"""randomk: elements drawn at random, the same ones on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .base import Compressor, element_count, refuse_whole_share, register


@register
@dataclass(frozen=True)
class RandomK(Compressor):
    """k draws of an element; only the values are sent, since all nodes draw the same.

    An element that is drawn twice counts once. Without error feedback the values are multiplied by
    n / k, which makes them unbiased but for repeats.

    Parameters
    ----------
    k : float
        0 < k < 1: a share of the elements of each chunk, floor(k n) of them, but at least one.
        k >= 1: a whole number of draws for each chunk, or n where it has fewer elements.
    seed : int, optional
        Of the draws. None: another one in every run.

    References
    ----------
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    name = "randomk"
    description = "k elements drawn at random, the same on all nodes"
    draws = "alike"
    summable = True

    k: float
    seed: Optional[int] = None

    def __post_init__(self) -> None:
        refuse_whole_share(self.k)

    def count(self, n: int) -> int:
        """How many draws there are among n elements."""
        return element_count(self.k, n)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        return self.count(n) * itemsize

    def seed_offset(self, n: int) -> int:
        return self.count(n)

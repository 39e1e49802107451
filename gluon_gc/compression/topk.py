"""topk: the elements that are largest in magnitude, with their indices."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, element_count, refuse_whole_share, register

_INDEX_BYTES = 4


@register
@dataclass(frozen=True)
class TopK(Compressor):
    """The k elements largest in abs(x), exactly; among equals those of the lowest indices.

    Parameters
    ----------
    k : float
        0 < k < 1: a share of the elements of each chunk, floor(k n) of them, but at least one.
        k >= 1: a whole number of elements of each chunk, or all where it has fewer.

    References
    ----------
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    name = "topk"
    description = "the k elements largest in magnitude, and where they are"

    k: float

    def __post_init__(self) -> None:
        refuse_whole_share(self.k)

    def count(self, n: int) -> int:
        """How many of n elements are sent."""
        return element_count(self.k, n)

    def payload_bytes(self, n: int, itemsize: int) -> int:
        return self.count(n) * (_INDEX_BYTES + itemsize)

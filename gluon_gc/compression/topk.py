"""topk: the k elements with the largest magnitudes, with their indices."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register
from .option import share_or_count


@register
@dataclass(frozen=True)
class TopK(Compressor):
    """Send the k elements of a chunk with the largest abs(x), and their indices.

    The choice is exact. Among elements of equal magnitude, the lowest indices are sent.

        decoded[i] = x[i] if x[i] is one of the k elements, else 0

    References
    ----------
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018: convergence with error feedback.
    Lin et al., "Deep Gradient Compression", ICLR 2018: the compressor dgc builds on it.
    """

    name = "topk"
    description = "the k elements with the largest magnitudes, and their indices"

    k: float = share_or_count().field()

"""topk: the k elements with the largest magnitudes, with their indices."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register, share_or_count, value_bits


@register
@dataclass(frozen=True)
class TopK(Compressor):
    """Send the k elements of a chunk with the largest abs(x), and their indices.

    The choice is exact. Among elements of equal magnitude, the lowest indices are sent.

        decoded[i] = round(x[i]) if x[i] is one of the k elements, else 0

    With `value_bits` 32, x[i] is not rounded; a float64 takes 64 bits. With 16, it is rounded to
    float16. An index takes about log2(n / k) + 2 bits, for k of n elements.

    References
    ----------
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018: convergence with error feedback.
    Lin et al., "Deep Gradient Compression", ICLR 2018: the compressor dgc builds on it.
    Elias 1974 and Fano 1971: the code of the indices.
    """

    name = "topk"
    description = "the k elements with the largest magnitudes, and their indices"

    k: float = share_or_count().field()
    value_bits: int = value_bits(16, 32).field(32)

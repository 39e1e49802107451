"""topk: the elements that are largest in magnitude, with their indices."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Compressor, register
from .option import share_or_count


@register
@dataclass(frozen=True)
class TopK(Compressor):
    """The k elements largest in abs(x), exactly; among equals those of the lowest indices.

    References
    ----------
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    name = "topk"
    description = "the k elements largest in magnitude, and where they are"

    k: float = share_or_count().field()

"""randomk: k elements drawn at random, the same ones on all workers and servers."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import switch
from .base import Compressor, register, seed, share_or_count


@register
@dataclass(frozen=True)
class RandomK(Compressor):
    """Send k elements of a chunk, drawn at random.

    For a chunk x of n elements:

        index[j] = draw[j] mod n for j = 1, ..., k     the same draws on all workers and servers
        decoded[i] = f * x[i] if i was drawn, else 0
        f = n / k without error feedback and with `scaling`, else 1

    The payload has the values only, because every node draws the same indices. An element that is
    drawn twice counts once. So with f = n / k, the mean of a decoded element is
    x (n / k) (1 - (1 - 1/n)^k), which is close to x if k is much smaller than n.

    References
    ----------
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (rand-k).
    """

    name = "randomk"
    description = "k elements drawn at random, the same ones on all workers"

    k: float = share_or_count().field()
    scaling: bool = switch(
        "multiply the values by n / k, to be unbiased; no effect with error feedback"
    ).field(True)
    seed: int | None = seed().field(None)

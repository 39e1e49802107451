"""randomk: elements drawn at random, the same ones on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ..options import switch
from .base import Compressor, register
from .option import seed, share_or_count


@register
@dataclass(frozen=True)
class RandomK(Compressor):
    """k draws of an element; only the values are sent, since all nodes draw the same.

    An element that is drawn twice counts once. Without error feedback `scaling` multiplies the
    values by n / k, which makes them unbiased but for repeats.

    References
    ----------
    Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
    """

    name = "randomk"
    description = "k elements drawn at random, the same on all nodes"

    k: float = share_or_count().field()
    scaling: bool = switch(
        "without error feedback multiply what is sent by n / k, which is unbiased; off: as it is"
    ).field(True)
    seed: Optional[int] = seed().field(None)

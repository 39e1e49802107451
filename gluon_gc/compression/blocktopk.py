"""blocktopk: the k largest elements of each block, with packed indices and rounded values."""

from __future__ import annotations

import numbers
from dataclasses import dataclass

from ..options import Option
from .base import Compressor, register, share_or_count, value_bits


@register
@dataclass(frozen=True)
class BlockTopK(Compressor):
    """Send the k elements with the largest abs(x) of each block of a chunk, and their indices.

    The choice is exact. Among elements of equal magnitude, the lowest indices are sent. The last
    block of a chunk may be shorter. For a block x:

        decoded[i] = round(x[i]) if x[i] is one of the k elements, else 0

    An index takes log2(block) bits, and a value `value_bits`:

    - 32: x, unchanged. A float64 takes 64 bits.
    - 16: x as float16.
    - 8 or 4: a sign and round(abs(x) / s * L). L is 127 or 7. The payload has s, the largest
      magnitude of the block.
    - 2: a sign and whether abs(x) reaches the mean magnitude of the k elements. The payload has the
      mean magnitude of both groups, to which their elements are decoded.

    References
    ----------
    Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025: 64 elements of
    4096 with 2 bits each, with error feedback that decays.
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    """

    name = "blocktopk"
    description = "the k largest elements of each block, with packed indices and 2 to 32-bit values"

    k: float = share_or_count("block").field(1 / 64)
    block: int = Option(
        (numbers.Integral,),
        (256, 512, 1024, 2048, 4096).__contains__,
        "a power of two from 256 to 4096",
        "number of elements in a block",
    ).field(4096)
    value_bits: int = value_bits(2, 4, 8, 16, 32).field(32)

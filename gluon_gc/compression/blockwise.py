"""blockwise: blocks of elements, each rounded to evenly spaced levels of its own."""

from __future__ import annotations

import numbers
from dataclasses import dataclass

from ..options import Option, switch
from .base import Compressor, register, seed


@register
@dataclass(frozen=True)
class Blockwise(Compressor):
    """Round each element to one of the evenly spaced levels of its block.

    For a block x, with L = 2^(bits - 1) - 1 if symmetric, else 2^bits - 1:

        symmetric:  low = 0,      step = max(abs(x)) / L
        else:       low = min(x), step = (max(x) - low) / L
        q = round((x - low) / step)        `bits` bits an element
        decoded = low + q * step

    A payload has the step of each block, and low if not symmetric, as bfloat16. Symmetric levels
    include 0. Elements beyond 2^88 are sent as 2^88.

    With `hadamard`, a block is multiplied by fixed random signs and by the Walsh-Hadamard matrix
    before it is rounded. The receiver reverses this. It spreads a single large element over the
    block, so the step is smaller.

    References
    ----------
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    NeurIPS 2017: a scale for each bucket, and stochastic rounding.
    Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression",
    NSDI 2024, and Jia et al., "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data
    Parallelism for LLM Training", NeurIPS 2024: the rotation.
    """

    name = "blockwise"
    description = "2 to 8 bits an element: the nearest of even levels of each block of elements"

    bits: int = Option(
        (numbers.Integral,),
        range(2, 9).__contains__,
        "a whole number from 2 to 8",
        "bits of an element",
    ).field(4)
    block: int = Option(
        (numbers.Integral,),
        (64, 128, 256, 512, 1024, 2048).__contains__,
        "a power of two from 64 to 2048",
        "number of elements in a block",
    ).field(128)
    symmetric: bool = switch(
        "levels are symmetric about 0 and include it; else from the block's minimum to its maximum"
    ).field(True)
    hadamard: bool = switch(
        "rotate a block before it is rounded, so that large elements do not widen all steps"
    ).field(False)
    stochastic: bool = switch(
        "round up or down at random, without bias; else to the nearest level"
    ).field(False)
    seed: int | None = seed().field(None)

"""SmallResiduals: residuals that are kept in 8 bits between two steps, a quarter of their memory.

A block of 128 residuals has one exponent e. Each residual is kept as the nearest q * 2^e with
abs(q) <= 127, where 2^e is the least power of two that keeps the largest q below 128. Rounding a
second time changes nothing, so a checkpoint with the decoded residuals resumes bit for bit.

Xie et al., "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024, keeps 8-bit
residuals for sharded training.
"""

from __future__ import annotations

from typing import Dict, Sequence

import torch

from ..kernels import State
from .coder import Coder, GpuCoder

_BLOCK = 128
_BITS = 7  # of abs(q)
_LEAST, _MOST = -120, 120  # exponents: their powers of two are float32 values


class Scratch:
    """Memory for the residuals of one FSDP module at a time. All modules share it.

    Parameters
    ----------
    size : int
        The number of elements of the largest module.
    """

    def __init__(self, size: int) -> None:
        self._size = -(-size // _BLOCK) * _BLOCK
        self._memory: Dict[torch.dtype, torch.Tensor] = {}

    def take(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return blocks for a number of elements, shape (blocks, 128)."""
        if dtype not in self._memory:
            self._memory[dtype] = torch.zeros(self._size, dtype=dtype)
        blocks = -(-size // _BLOCK)
        return self._memory[dtype][: blocks * _BLOCK].view(blocks, _BLOCK)


class SmallResiduals:
    """The residuals of one FSDP module. The coders' own arrays are in the scratch memory.

    Parameters
    ----------
    coders : sequence of Coder
        All have error feedback with one array each, of the same dtype.
    scratch : Scratch

    Raises
    ------
    ValueError
        A GPU compresses the gradients.
    """

    def __init__(self, coders: Sequence[Coder], scratch: Scratch) -> None:
        if any(isinstance(coder, GpuCoder) for coder in coders):
            raise ValueError("residual_bits must be 32 for gradients that a GPU compresses, got 8")
        sizes = [coder.carried.memory[0].size for coder in coders]
        dtype = torch.from_numpy(coders[0].carried.memory[0]).dtype
        self._residuals = scratch.take(sum(sizes), dtype)
        views = self._residuals.view(-1)[: sum(sizes)].split(sizes)
        for coder, view in zip(coders, views):
            coder.carried = State(coder.carried.momentum, (view.numpy(),))
        self._residuals.zero_()
        self.compact()

    @property
    def nbytes(self) -> int:
        """The bytes that are kept between two steps."""
        return self._values.nbytes + self._exponents.nbytes

    def expand(self) -> None:
        """Decode the residuals into the scratch memory."""
        torch.ldexp(self._values.to(self._residuals.dtype), self._exponents, out=self._residuals)

    def compact(self) -> None:
        """Keep the residuals that are in the scratch memory."""
        largest = self._residuals.abs().amax(1, keepdim=True)
        self._exponents = (
            (torch.frexp(largest).exponent - _BITS).clamp(_LEAST, _MOST).to(torch.int8)
        )
        scaled = torch.ldexp(self._residuals, -self._exponents).round_()
        limit = 2**_BITS - 1
        self._values = scaled.clamp_(-limit, limit).to(torch.int8)

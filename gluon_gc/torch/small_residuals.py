"""SmallResiduals: residuals that are kept in 8 bits between two steps, a quarter of their memory.

A block of 128 residuals has one exponent e. Each residual is kept as the nearest q * 2^e with
abs(q) <= 127, where 2^e is the least power of two that keeps the largest q below 128. Rounding a
second time changes nothing, so a checkpoint with the decoded residuals resumes bit for bit.

Xie et al., "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024, keeps 8-bit
residuals for sharded training.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence, Tuple

import torch

from . import gpu
from .coder import Coder

_BLOCK = 128
_BITS = 7  # of abs(q)
_LEAST, _MOST = -120, 120  # exponents: their powers of two are normal float32 values
_FLOAT32_BIAS, _FLOAT32_FRACTION_BITS = 127, 23


class Scratch:
    """Memory for the residuals of one FSDP module at a time. All modules share it.

    Parameters
    ----------
    size : int
        The number of elements of the largest module.
    """

    def __init__(self, size: int) -> None:
        self._size = -(-size // _BLOCK) * _BLOCK
        self._memory: Dict[Tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def take(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return blocks for a number of elements, shape (blocks, 128)."""
        key = device, dtype
        if key not in self._memory:
            self._memory[key] = torch.zeros(self._size, dtype=dtype, device=device)
        blocks = -(-size // _BLOCK)
        return self._memory[key][: blocks * _BLOCK].view(blocks, _BLOCK)


class SmallResiduals:
    """The residuals of one FSDP module. The coders' own arrays are in the scratch memory.

    Parameters
    ----------
    coders : sequence of Coder
        All have error feedback with one array each, of the same dtype, on the same device.
    scratch : Scratch
    """

    def __init__(self, coders: Sequence[Coder], scratch: Scratch) -> None:
        sizes = [coder.codec.memory[0] for coder in coders]
        dtype, self._device = getattr(torch, coders[0].codec.dtype.name), coders[0].device
        with gpu.queue(self._device):
            self._residuals = scratch.take(sum(sizes), dtype, self._device)
            self._residuals.zero_()
        views = self._residuals.view(-1)[: sum(sizes)].split(sizes)
        for coder, view in zip(coders, views):
            coder.use_memory(view)
        self.compact()

    @property
    def nbytes(self) -> int:
        """The bytes that are kept between two steps."""
        return self._values.nbytes + self._exponents.nbytes

    def expand(self) -> None:
        """Decode the residuals into the scratch memory."""
        with gpu.queue(self._device):
            torch.mul(self._values, self._powers(self._exponents), out=self._residuals)

    def compact(self) -> None:
        """Keep the residuals that are in the scratch memory."""
        limit = 2**_BITS - 1
        with gpu.queue(self._device):
            largest = self._residuals.abs().amax(1, keepdim=True)
            exponents = (torch.frexp(largest).exponent - _BITS).clamp(_LEAST, _MOST)
            scaled = (self._residuals * self._powers(-exponents)).round_()
            self._values = scaled.clamp_(-limit, limit).to(torch.int8)
            self._exponents = exponents.to(torch.int8)

    def _powers(self, exponents: torch.Tensor) -> torch.Tensor:
        """Return 2^exponents, made of their bits: a GPU's `pow` may round."""
        biased = exponents.to(torch.int32) + _FLOAT32_BIAS
        powers = (biased << _FLOAT32_FRACTION_BITS).view(torch.float32)
        return powers.to(self._residuals.dtype)


def small_residuals(coders: Iterable[Coder], scratch: Scratch) -> List[SmallResiduals]:
    """Return the residuals of coders with error feedback, by device."""
    by_device: Dict[torch.device, List[Coder]] = {}
    for coder in coders:
        by_device.setdefault(coder.device, []).append(coder)
    return [SmallResiduals(of_device, scratch) for of_device in by_device.values()]

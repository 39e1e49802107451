"""SmallResiduals: residuals that are kept in 8 bits between two steps, a quarter of their memory.

A block of 128 residuals has one exponent e. Each residual is kept as the nearest q * 2^e with
abs(q) <= 127, where 2^e is the least power of two that keeps the largest q below 128. Rounding a
second time changes nothing, so a checkpoint with the decoded residuals resumes bit for bit.

Xie et al., "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024, keeps 8-bit
residuals for sharded training.
"""

from __future__ import annotations

from typing import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch

from ...exchange.chunk import ExchangedChunk
from ..transport import gpu

_BLOCK = 128
_BITS = 7  # of abs(q)
_LEAST, _MOST = -120, 120  # exponents: their powers of two are normal float32 values
_FLOAT32_BIAS, _FLOAT32_FRACTION_BITS = 127, 23


class Scratch:
    """Memory for the residuals of one FSDP module at a time. All modules share it."""

    def __init__(self) -> None:
        self._blocks = 0
        self._memory: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._orders: dict[torch.device, gpu.Order] = {}

    def reserve(self, sizes: Iterable[int]) -> None:
        """Make room for a module's residuals of these sizes, before the first `take`."""
        self._blocks = max(self._blocks, sum(map(blocks_of, sizes)))

    def order(self, device: torch.device) -> gpu.Order:
        """Return the order of all work on the memory on a device."""
        if device not in self._orders:
            self._orders[device] = gpu.Order(device)
        return self._orders[device]

    def take(self, blocks: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return zeros, shape (blocks, 128)."""
        key = device, dtype
        if key not in self._memory:
            self._memory[key] = torch.empty(self._blocks, _BLOCK, dtype=dtype, device=device)
        return self._memory[key][:blocks].zero_()


def blocks_of(size: int) -> int:
    """Return the number of blocks of a residual. They have no elements of other residuals."""
    return -(-size // _BLOCK)


class SmallResiduals:
    """The residuals of one FSDP module. The coders' own arrays are in the scratch memory.

    All chunks have error feedback with one array each, of the same dtype, on the same device.
    """

    def __init__(self, chunks: Sequence[ExchangedChunk], scratch: Scratch) -> None:
        coders = [chunk.coder for chunk in chunks]
        sizes = [coder.codec.memory[0] for coder in coders]
        ends = np.cumsum([0, *map(blocks_of, sizes)]).tolist()
        self._blocks = [
            (chunk.piece.tensor, slice(begin, end))
            for chunk, begin, end in zip(chunks, ends, ends[1:])
        ]
        dtype = getattr(torch, coders[0].codec.dtype.name)
        self._device = coders[0].device or gpu.CPU
        self._order = scratch.order(self._device)
        with self._order.queue():
            self._residuals = scratch.take(ends[-1], dtype, self._device)
        for coder, size, (_, blocks) in zip(coders, sizes, self._blocks):
            memory = self._residuals[blocks].view(-1)[:size]
            coder.use_memory(memory.numpy() if coder.device is None else memory)
        self._now = self._before = self._rounded()

    def expand(self, undone: Collection[str] = ()) -> None:
        """Decode the residuals into the scratch memory; those of `undone` as before the step."""
        with self._order.queue():
            gpu.record((*self._now, *self._before))
            values, exponents = self._now
            torch.mul(values, self._powers(exponents), out=self._residuals)
            for blocks in self._of(undone):
                values, exponents = (array[blocks] for array in self._before)
                torch.mul(values, self._powers(exponents), out=self._residuals[blocks])

    def compact(self, continues: Collection[str] = ()) -> None:
        """Keep the residuals that are in the scratch memory.

        `continues`: `take_back` also undoes the call before, for the residuals of these tensors.
        """
        self.take_back(continues)
        self._before, self._now = self._now, self._rounded()

    def take_back(self, tensors: Collection[str]) -> None:
        """Return to the residuals before the last `compact`, for these tensors."""
        with self._order.queue():
            gpu.record((*self._now, *self._before))
            for blocks in self._of(tensors):
                for now, before in zip(self._now, self._before):
                    now[blocks] = before[blocks]

    def _of(self, tensors: Collection[str]) -> Iterator[slice]:
        return (blocks for tensor, blocks in self._blocks if tensor in tensors)

    def _rounded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values and exponents of the residuals that are in the scratch memory."""
        limit = 2**_BITS - 1
        with self._order.queue():
            largest = self._residuals.abs().amax(1, keepdim=True)
            exponents = (torch.frexp(largest).exponent - _BITS).clamp(_LEAST, _MOST)
            scaled = (self._residuals * self._powers(-exponents)).round_()
            return scaled.clamp_(-limit, limit).to(torch.int8), exponents.to(torch.int8)

    def _powers(self, exponents: torch.Tensor) -> torch.Tensor:
        """Return 2^exponents, made of their bits: a GPU's `pow` may round."""
        biased = exponents.to(torch.int32) + _FLOAT32_BIAS
        powers = (biased << _FLOAT32_FRACTION_BITS).view(torch.float32)
        return powers.to(self._residuals.dtype)


def small_residuals(chunks: Iterable[ExchangedChunk], scratch: Scratch) -> list[SmallResiduals]:
    """Return the residuals of chunks with error feedback, by device."""
    by_device: dict[torch.device, list[ExchangedChunk]] = {}
    for chunk in chunks:
        by_device.setdefault(chunk.coder.device, []).append(chunk)
    return [SmallResiduals(of_device, scratch) for of_device in by_device.values()]

"""One chunk on its way: what a worker sends to the chunk's owner and to all, and what comes back.

Values are in the dtype that compressors compute in. The methods of a channel are called in the
order encode, answer (by the owner), deliver, each on a thread of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from .. import kernels
from ..compression.stream import State
from ..plan import Chunk, Slice
from .coder import Coder


@dataclass
class Meter:
    """What a worker did in a channel since it was last reset.

    Parameters
    ----------
    steps : int
    pushed_bytes, pulled_bytes : int
        That it handed over, and that came back.
    compress_seconds, wait_seconds, decompress_seconds : float
    """

    steps: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    compress_seconds: float = 0.0
    wait_seconds: float = 0.0
    decompress_seconds: float = 0.0


class Channel:
    """A chunk of one tensor, and who sums it.

    Parameters
    ----------
    chunk : Chunk
    owner : int
        The worker that sums it.

    Attributes
    ----------
    to_owner, to_all : int
        Bytes that a worker sends to the owner, and that the owner sends to all, at most.
    varies : bool
        Whether they may be fewer.
    gathered : bool
        Whether every worker, rather than the owner, sends to all.
    """

    to_owner: int
    to_all: int
    varies = False
    gathered = False

    def __init__(self, chunk: Chunk, owner: int) -> None:
        self.chunk, self.owner, self.meter = chunk, owner, Meter()

    @property
    def piece(self) -> Slice:
        (piece,) = self.chunk.slices
        return piece

    def encode(self, values: np.ndarray, scale: float, ratio: float, out: np.ndarray) -> int:
        """Write what this worker sends of scale * values; how many bytes that is."""
        raise NotImplementedError

    def answer(self, rows: np.ndarray, out: np.ndarray) -> int:
        """As the owner, write what all get of what all sent; how many bytes that is."""
        raise NotImplementedError

    def deliver(self, rows: np.ndarray, values: np.ndarray) -> bool:
        """Write the sum over workers; whether it is finite."""
        raise NotImplementedError

    def used(self, row: np.ndarray) -> int:
        """How many bytes of what came are in use."""
        return row.size

    def set_epoch(self, epoch: int) -> None:
        """Compress as in an epoch, counted from 0."""


class Plain(Channel):
    """Values that travel as they are.

    Parameters
    ----------
    wire : torch.dtype
        In which they travel.
    checked : bool
        Whether it is looked for what is not finite.
    """

    def __init__(self, chunk: Chunk, owner: int, wire: torch.dtype, checked: bool) -> None:
        super().__init__(chunk, owner)
        self._wire, self._checked = wire, checked
        self.to_owner = self.to_all = chunk.size * wire.itemsize

    def encode(self, values: np.ndarray, scale: float, ratio: float, out: np.ndarray) -> int:
        scaled = torch.from_numpy(values) * scale
        torch.from_numpy(out).view(self._wire).copy_(scaled)
        return out.size

    def answer(self, rows: np.ndarray, out: np.ndarray) -> int:
        sent = [torch.from_numpy(row).view(self._wire) for row in rows]
        working = torch.float32 if self._wire.itemsize < 4 else self._wire
        total = sent[0].to(working, copy=True)
        for values in sent[1:]:
            total += values
        torch.from_numpy(out).view(self._wire).copy_(total)
        return out.size

    def deliver(self, rows: np.ndarray, values: np.ndarray) -> bool:
        torch.from_numpy(values).copy_(torch.from_numpy(rows[0]).view(self._wire))
        return not self._checked or kernels.values_finite(values)


class _Compressed(Channel):
    """What a worker's coder makes payloads of.

    Parameters
    ----------
    start : State, optional
        Where the worker's random stream starts.
    """

    def __init__(self, chunk: Chunk, owner: int, start: Optional[State]) -> None:
        super().__init__(chunk, owner)
        self.coder = Coder(chunk.params, chunk.size, chunk.dtype, start)
        full = chunk.params.compressor.full
        self.varies = self.coder.codec.length_at is not None and not full

    @property
    def to_owner(self) -> int:
        return self.coder.codec.payload_bytes

    @property
    def to_all(self) -> int:
        return self.coder.codec.payload_bytes

    def encode(self, values: np.ndarray, scale: float, ratio: float, out: np.ndarray) -> int:
        return self.coder.compress(values, scale, ratio, out)

    def deliver(self, rows: np.ndarray, values: np.ndarray) -> bool:
        return self.coder.decompress(rows, values)

    def used(self, row: np.ndarray) -> int:
        return self.coder.codec.used(row)

    def set_epoch(self, epoch: int) -> None:
        self.coder.set_epoch(epoch)


class TwoWay(_Compressed):
    """Payloads that the owner aggregates.

    Parameters
    ----------
    aggregator : Coder, optional
        The owner's, if that is this worker.
    """

    def __init__(
        self, chunk: Chunk, owner: int, start: Optional[State], aggregator: Optional[Coder]
    ) -> None:
        super().__init__(chunk, owner, start)
        self.aggregator = aggregator

    def answer(self, rows: np.ndarray, out: np.ndarray) -> int:
        return self.aggregator.aggregate(rows, out)


class Summed(_Compressed):
    """Payloads that are arrays of values, and add up."""

    def answer(self, rows: np.ndarray, out: np.ndarray) -> int:
        total = out.view(self.chunk.dtype)
        total[:] = rows[0].view(self.chunk.dtype)
        for row in rows[1:]:
            total += row.view(self.chunk.dtype)
        return out.size


class Gathered(_Compressed):
    """Payloads that all workers get, and add up."""

    gathered = True
    to_owner = 0

"""One chunk on its way: how it travels, who sums it, and what is carried over for it."""

from __future__ import annotations

from typing import Optional

import numpy as np
import torch

from ..plan import Chunk, Slice
from .coder import Coder
from .collectives import Part

PLAIN, SUMMED, TWO_WAY, GATHERED = "plain", "summed", "two_way", "gathered"


class Channel:
    """A chunk of one tensor.

    Parameters
    ----------
    chunk : Chunk
    owner : int
        The worker that sums it.
    wire : torch.dtype
        In which its values travel if they are not compressed.
    working : str
        The dtype of its values before and after.
    device : torch.device
        Where these are.
    checked : bool
        Whether it is looked for what is not finite, if it is not compressed.
    coder : Coder, optional
        This worker's, if it is compressed.
    aggregator : Coder, optional
        The owner's, if that is this worker and aggregates payloads.
    local : int, optional
        The local rank of the workers who exchange it, if each machine adds it up first; the owner
        is the number of a machine then.

    Attributes
    ----------
    kind : str
        PLAIN: the owner sums values. SUMMED: payloads, which are values. TWO_WAY: it aggregates
        payloads. GATHERED: all workers get all payloads.
    """

    def __init__(
        self,
        chunk: Chunk,
        owner: int,
        wire: torch.dtype,
        working: str,
        device: torch.device,
        checked: bool,
        coder: Optional[Coder] = None,
        aggregator: Optional[Coder] = None,
        local: Optional[int] = None,
    ) -> None:
        self.chunk, self.owner, self.wire, self.checked = chunk, owner, wire, checked
        self.working, self.device, self.local = working, device, local
        self.coder, self.aggregator = coder, aggregator
        (self.piece,) = chunk.slices
        self.kind = PLAIN
        if coder is not None:
            self.kind = GATHERED if chunk.gathered else TWO_WAY if chunk.aggregated else SUMMED

    piece: Slice

    @property
    def num_bytes(self) -> int:
        """Of what one worker sends, or an owner answers, at most."""
        if self.coder is None:
            return self.chunk.size * self.wire.itemsize
        return self.coder.codec.payload_bytes

    @property
    def carries(self) -> bool:
        """Whether this worker keeps a residual or momentum for it."""
        return self.coder is not None and bool(self.coder.codec.memory or self.coder.codec.momentum)

    @property
    def part(self) -> Part:
        """What travels of it."""
        varies = self.coder is not None and self.coder.codec.length_at is not None
        if not varies or self.chunk.params.compressor.full:
            return Part(self.num_bytes)
        return Part(self.num_bytes, self.coder.codec.used)

    @property
    def values_bytes(self) -> int:
        """Of its values."""
        return self.chunk.size * np.dtype(self.working).itemsize

    @property
    def compressed_alike(self) -> object:
        """Equal for channels whose codecs differ in their number of elements alone."""
        return self.kind, self.chunk.params, self.chunk.dtype, self.device

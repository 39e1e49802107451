"""ExchangedChunk: a chunk of a tensor with its owner, dtypes, device and codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np
import torch

from ..compression import CompressionParams
from ..plan import Chunk
from .coder import Coder
from .collectives import WireSize

PLAIN, SUMMED, TWO_WAY, GATHERED = "plain", "summed", "two_way", "gathered"
OVER_NCCL = "over_nccl"


@dataclass(eq=False)  # chunks are keys of dictionaries
class ExchangedChunk:
    """A chunk of one tensor, as workers exchange it.

    Parameters
    ----------
    plan : Chunk
    owner : int
        The worker that sums the chunk. If `local` is given: the number of a machine.
    wire : torch.dtype
        The dtype of its values if they are sent uncompressed.
    working : str
        The dtype of its values before and after the exchange.
    device : torch.device
        The device of these values.
    checked : bool
        Whether uncompressed values are checked for NaNs and infinities.
    coder : Coder, optional
        This worker's coder, if the chunk is compressed.
    aggregator : Coder, optional
        The owner's coder, if this worker is the owner and aggregates payloads.
    local : int, optional
        The local rank of the workers that exchange the chunk after each machine has summed it.
    over_nccl : bool
        Whether its payloads stay in GPU memory.

    Attributes
    ----------
    piece : Slice
        Its elements.
    kind : str
        PLAIN: the owner sums values. SUMMED: the owner sums payloads, which are values. TWO_WAY:
        the owner decodes and sums payloads, and compresses the sum. GATHERED: all workers receive
        all payloads. OVER_NCCL: as TWO_WAY, on the owner's GPU.
    """

    plan: Chunk
    owner: int
    wire: torch.dtype
    working: str
    device: torch.device
    checked: bool
    coder: Optional[Coder] = None
    aggregator: Optional[Coder] = None
    local: Optional[int] = None
    over_nccl: bool = False

    def __post_init__(self) -> None:
        (self.piece,) = self.plan.slices
        self.kind = PLAIN
        if self.coder is not None:
            compressed = TWO_WAY if self.plan.aggregated else SUMMED
            self.kind = GATHERED if self.plan.gathered else compressed
        if self.over_nccl:
            self.kind = OVER_NCCL

    @property
    def num_bytes(self) -> int:
        """The maximum number of bytes that one worker sends, or that the owner answers."""
        if self.coder is None:
            return self.plan.size * self.wire.itemsize
        return self.coder.codec.payload_bytes

    @property
    def wire_size(self) -> WireSize:
        """The size of its payload or values in a message."""
        if self.coder is None or self.coder.has_fixed_length:
            return WireSize(self.num_bytes)
        return WireSize(self.num_bytes, self.coder.codec.used)

    @property
    def values_bytes(self) -> int:
        """The size of its values in their working dtype, in bytes."""
        return self.plan.size * np.dtype(self.working).itemsize

    @property
    def coding(self) -> Tuple[str, Optional[CompressionParams], str, torch.device]:
        """A key that is equal for the chunks that one call of the library can compress."""
        return self.kind, self.plan.params, self.plan.dtype, self.device

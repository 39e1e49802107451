"""ExchangedChunk: a chunk of a tensor with its owner, dtypes, device and coders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..compression import CompressionParams
from .coder import Coder
from .collectives import WireSize
from .plan import Chunk

PLAIN, SUMMED, TWO_WAY, GATHERED = "plain", "summed", "two_way", "gathered"


@dataclass(eq=False)  # chunks are keys of dictionaries
class ExchangedChunk:
    """A chunk of one tensor, as workers exchange it.

    Its `piece` has its elements. Its `kind` is PLAIN: the owner sums values; SUMMED: the owner sums
    payloads, which are values; TWO_WAY: the owner decodes and sums payloads, and compresses the
    sum; GATHERED: all workers receive all payloads.
    """

    plan: Chunk
    owner: int  # the worker that sums the chunk; if `inside` is given: the number of a machine
    wire: str  # the dtype of its values if they are sent uncompressed
    itemsize: int  # of that dtype, in bytes
    working: str  # the dtype of its values before and after the exchange
    device: Any  # of these values
    checked: bool  # whether uncompressed values are checked for NaNs and infinities
    coder: Coder | None = None  # this worker's, if the chunk is compressed
    aggregator: Coder | None = None  # the owner's, if this worker is the owner and aggregates
    inside: Inside | None = None  # if each machine sums the chunk before it is exchanged
    on_gpu: bool = False  # whether its payloads or values travel from GPU to GPU
    senders: int = 1  # the number of payloads that travel together, each with the most bytes

    def __post_init__(self) -> None:
        (self.piece,) = self.plan.slices
        self.kind = PLAIN
        if self.coder is not None:
            compressed = TWO_WAY if self.plan.aggregated else SUMMED
            self.kind = GATHERED if self.plan.gathered else compressed

    @property
    def num_bytes(self) -> int:
        """The maximum number of bytes that one worker sends, or that the owner answers."""
        if self.coder is None:
            return self.plan.size * self.itemsize
        return self.coder.codec.payload_bytes

    @property
    def wire_size(self) -> WireSize:
        """The size of its payloads or values in a message."""
        if self.senders > 1 or self.coder is None or self.coder.has_fixed_length:
            return WireSize(self.num_bytes * self.senders)
        return WireSize(self.num_bytes, self.coder.codec.used)

    @property
    def coding(self) -> tuple[str, CompressionParams | None, str, Any, bool]:
        """A key that is equal for the chunks that one call of the library can compress."""
        return self.kind, self.plan.params, self.plan.dtype, self.device, self.on_gpu


class Inside(NamedTuple):
    """How a chunk travels between the workers of a machine; see `MachineTransfer`."""

    local: int  # the local rank of the workers that exchange the machines' sums
    to_owner: ExchangedChunk  # each worker's values, or their payloads, on the way to that worker
    to_all: ExchangedChunk  # the sum over all machines, or what decodes to it, on the way back

    @property
    def forwards(self) -> bool:
        """Whether the bytes that come from other machines are sent on as they are.

        Otherwise that worker decodes them, and sends values.
        """
        return self.to_all.coder is not None or self.to_all.plan.params is None

"""GpuTransfer: chunks whose payloads stay in GPU memory, and travel over NCCL."""

from __future__ import annotations

from itertools import islice
from typing import Iterator, Sequence

import numpy as np
import torch.distributed as dist

from . import header
from .coding import Buffers, codings
from .exchanged_chunk import ExchangedChunk
from .gpu_collectives import GpuToAll, GpuToOwners, Members
from .groups import Pair
from .stats import Meter
from .transfer import Section, Transfer, with_headers


class GpuTransfer(Transfer):
    """Chunks that are compressed, summed and decompressed on GPUs.

    Parameters
    ----------
    chunks : sequence of ExchangedChunk
        Their payloads have a fixed length.
    groups, nccl_groups : pair of ProcessGroup
        The workers' groups of Gloo, which carries headers, and of NCCL, which carries payloads. One
        of each for each of the two collectives.
    tag : int
        See `Transfer`.
    """

    def __init__(
        self, chunks: Sequence[ExchangedChunk], groups: Pair, nccl_groups: Pair, tag: int
    ) -> None:
        rank, workers = dist.get_rank(groups[0]), dist.get_world_size(groups[0])
        ranks = dist.get_process_group_ranks(groups[0])
        owned = [[chunk for chunk in chunks if chunk.owner == worker] for worker in range(workers)]
        self.chunks, self.meter = [chunk for each in owned for chunk in each], Meter()
        self._identity = header.identity(chunk.piece for chunk in self.chunks)
        headers = [[header.wire_size(len(each))] if each else [] for each in owned]
        headed, no_owners = with_headers(headers)
        sizes = [[chunk.num_bytes for chunk in each] for each in owned]
        device = chunks[0].device
        first, second = (Members(*each, device) for each in zip(groups, nccl_groups))
        self._to_owners = GpuToOwners(first, tag, headed, sizes, no_owners)
        self._to_all = GpuToAll(second, tag, headers, sizes)
        rooms, rows = iter(self._to_owners.rooms), iter(self._to_owners.rows)
        self._sent = [Section(each, islice(rooms, 1), {}, headed=True) for each in owned]
        senders = [ranks[sender] for sender in self._to_owners.senders]
        self._received = Section(owned[rank], islice(rows, 1), {}, senders, headed=True)
        self._answer = _section(owned[rank], iter(self._to_all.rooms))
        rows = iter(self._to_all.rows)
        self._answers = [_section(each, rows) for each in owned]
        self._gathered = self._gathered_rows = _section([], iter(()))
        self._num_gathered, self._of_gathered = 0, []
        buffers = Buffers(
            dict(zip(self.chunks, self._to_owners.payload_rooms)),
            dict(zip(owned[rank], self._to_owners.payload_rows)),
            dict(zip(owned[rank], self._to_all.payload_rooms)),
            dict(zip(self.chunks, self._to_all.payload_rows)),
        )
        self._of_others = codings(self.chunks, buffers)


def _section(chunks: Sequence[ExchangedChunk], rooms: Iterator[np.ndarray]) -> Section:
    """Return a section whose only room is that of its header."""
    return Section(chunks, islice(rooms, bool(chunks)), {})

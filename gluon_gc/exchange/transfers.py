"""Transfers: groups the chunks of tensors into transfers."""

from __future__ import annotations

import itertools
import zlib
from contextlib import suppress
from typing import Callable, Collection, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from . import groups, header
from .allreduce import Allreduce, sums_in_place
from .exchanged_chunk import OVER_NCCL, ExchangedChunk
from .gpu_transfer import GpuTransfer
from .groups import Pair
from .header import OutOfStepError, Stamp
from .machines import Machines, MachineTransfer
from .sparse import SparseSum
from .stages import Stages
from .transfer import Transfer

_TRANSFER_BYTES = 256 * 1024  # that a worker sends in one collective, approximately


class Transfers:
    """Creates the transfers of tensors, and keeps them for the next steps.

    Parameters
    ----------
    pair : pair of ProcessGroup
    ranks : sequence of int
        The workers of these groups.
    machines : Machines, optional
        The machines that sum their workers' values first.
    chunks_of : callable
        Returns the chunks of a tensor, given its name.

    Attributes
    ----------
    out_of_step : bool
        Whether a worker exchanges other tensors than its peers. Nothing can be exchanged then.
    nccl_groups : pair of ProcessGroup, optional
        The same workers' groups of NCCL, if a chunk needs them.
    """

    def __init__(
        self,
        pair: Pair,
        ranks: Sequence[int],
        machines: Optional[Machines],
        chunks_of: Callable[[str], List[ExchangedChunk]],
    ) -> None:
        self._groups, self._machines, self._chunks_of = pair, machines, chunks_of
        self.nccl_groups: Optional[Pair] = None
        self.out_of_step = False
        self._tags = groups.Tags(ranks)
        self._dense: Dict[Tuple[str, ...], List[Stages]] = {}
        self._sparse: Dict[str, SparseSum] = {}

    def of(self, names: Collection[str]) -> List[Stages]:
        """Return the transfers of dense tensors that are exchanged in one job."""
        key = tuple(names)
        if key not in self._dense:
            for old_key in [old_key for old_key in self._dense if not set(key).isdisjoint(old_key)]:
                del self._dense[old_key]
            self._dense[key] = list(self._made([c for name in key for c in self._chunks_of(name)]))
        return self._dense[key]

    def of_sparse(self, name: str) -> SparseSum:
        """Return the transfer of a sparse tensor."""
        if name not in self._sparse:
            self._sparse[name] = SparseSum(
                name, self._groups, self._tags.take(zlib.crc32(name.encode()))
            )
        return self._sparse[name]

    def __iter__(self) -> Iterator[Stages]:
        return itertools.chain(*self._dense.values(), self._sparse.values())

    def broken(self, error: BaseException) -> None:
        """Tell the other workers, if they would wait for messages that never come."""
        if isinstance(error, OutOfStepError):
            self.out_of_step = True
            abandon(list(self), error.outcome)

    def clear(self) -> None:
        """Forget the transfers of dense tensors. They are created again when needed."""
        self._dense.clear()

    def _made(self, chunks: Sequence[ExchangedChunk]) -> Iterator[Stages]:
        """Yield new transfers for chunks; the ones with the most stages come first."""
        in_place = [chunk for chunk in chunks if sums_in_place(chunk)]
        others = [chunk for chunk in chunks if not sums_in_place(chunk)]
        for batch in _batches([chunk for chunk in others if chunk.local is not None]):
            yield MachineTransfer(batch, self._machines, self._tag(batch))
        over_nccl = [chunk for chunk in others if chunk.kind == OVER_NCCL]
        for batch in _batches(over_nccl):
            yield GpuTransfer(batch, self._groups, self.nccl_groups, self._tag(batch))
        by_host = [c for c in others if c.local is None and c.kind != OVER_NCCL]
        for batch in _batches(by_host):
            yield Transfer(batch, self._groups, self._tag(batch))
        for _, tensor_chunks in itertools.groupby(in_place, lambda chunk: chunk.piece.tensor):
            batch = list(tensor_chunks)
            yield Allreduce(batch, self._groups[0], self._tag(batch))

    def _tag(self, chunks: Sequence[ExchangedChunk]) -> int:
        return self._tags.take(header.identity(chunk.piece for chunk in chunks))


def abandon(transfers: Iterable[Stages], outcome: Stamp) -> None:
    """Send an outcome to all workers that may wait for a message of these transfers."""
    for transfer in transfers:
        with suppress(RuntimeError):  # the other worker has ended
            transfer.abandon(outcome)


def _batches(chunks: Sequence[ExchangedChunk]) -> List[List[ExchangedChunk]]:
    """Group neighbouring chunks into batches of about _TRANSFER_BYTES."""
    batches: List[List[ExchangedChunk]] = []
    total = _TRANSFER_BYTES
    for chunk in chunks:
        if total >= _TRANSFER_BYTES:
            batches.append([])
            total = 0
        batches[-1].append(chunk)
        total += chunk.plan.message_bytes
    return batches

"""Transfers of sharded tensors: only the owner of a shard gets its sum, or has its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import (
    Callable,
    Collection,
    ContextManager,
    Mapping,
    Sequence,
)

import numpy as np

from . import header
from .arrays import Values
from .chunk import PLAIN, SUMMED, ExchangedChunk
from .coding import Buffers, Coding, codings, encode, encoding
from .collectives import WireSize
from .job import Request, Task
from .statistics import Meter
from .transfer import Link, Stages


class ReduceScatter(Stages):
    """Each worker sends its values of all shards. The owner of a shard adds up the payloads.

    The sums are not compressed again. `owned` has each owner's chunks. `around` returns a context
    for compressing a request's values.
    """

    def __init__(
        self,
        owned: Sequence[Sequence[ExchangedChunk]],
        link: Link,
        around: Callable[[Request], ContextManager[None]],
    ) -> None:
        self._around, self._ranks, self.meter = around, link.members.ranks, Meter()
        self.chunks = [chunk for chunks in owned for chunk in chunks]
        self._identity = header.identity(chunk.piece for chunk in self.chunks)
        sizes = [(header.wire_size(0), *(c.wire_size for c in chunks)) for chunks in owned]
        self._to_owners = link.collectives.to_owners(link.members, link.tag, sizes)
        self.collectives = [self._to_owners]
        self._headers, *rows = self._to_owners.rows
        received = dict(zip(owned[link.members.rank], rows))
        sums = {c: rows[0].copy() for c, rows in received.items() if c.kind in (PLAIN, SUMMED)}
        answers = {c: sums[c][None] if c in sums else rows for c, rows in received.items()}
        rooms, sent = iter(self._to_owners.rooms), {}
        self._own_headers: list[np.ndarray] = []
        for chunks in owned:
            self._own_headers.append(next(rooms))
            sent.update(zip(chunks, rooms))
        buffers = Buffers(sent, {c: received[c] for c in sums}, sums, answers)
        in_order = [owned[worker] for worker in self._to_owners.order]
        self._codings = codings(in_order, buffers, link.arrays)

    def send(self, task: Task) -> None:
        """Encode the values of all shards, and send them to their owners."""
        stamp = task.job.stamp_of(self._identity)
        for own_header in self._own_headers:
            header.write(own_header, stamp, ())
        with self.meter.timing("compress_seconds"), self._around(task.job.request):
            self.meter.pushed_bytes += self._to_owners.start(encoding(self._codings, task.job))

    def answer(self, task: Task) -> None:
        """Write the sums of this worker's shards."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_owners.wait()
        outcome, _, _ = header.read(self._headers, self._ranks)
        task.note(outcome)
        with self.meter.timing("decompress_seconds"):
            for coding in self._codings:
                coding.answer(task.job)
                # The next job's sums may overwrite what this reads before the end of this job.
                task.nonfinite.append(list(coding.deliver(task.job)))
        self._to_owners.expect()
        self.meter.steps += 1


@dataclass(frozen=True)
class GatherRequest(Request):
    """Some shards of this worker, which all workers receive."""

    receive: Callable[[Sequence[str], Sequence[str]], Values] | None = None
    """Returns where to write the shards of all workers that were sent, given the names of these and
    of the flagged ones."""
    flagged: Collection[str] = ()  # names of this worker's shards that get a flag only


class AllGather(Stages):
    """Each worker sends shards to all workers. Those that are sent, or flagged, differ by step.

    `owned` has each worker's chunks, by the names of its shards.
    """

    def __init__(self, owned: Sequence[Mapping[str, Sequence[ExchangedChunk]]], link: Link) -> None:
        rank = link.members.rank
        self._ranks, self.meter = link.members.ranks, Meter()
        self._keys = [list(shards) for shards in owned]
        by_worker = [[c for chunks in shards.values() for c in chunks] for shards in owned]
        self.chunks = [chunk for chunks in by_worker for chunk in chunks]
        self._identity = header.identity(chunk.piece for chunk in self.chunks)
        head = [header.wire_size(0), WireSize(len(self._keys[rank]))]
        sizes = [
            [*head, *(self._wire_size(w, c) for c in chunks)] for w, chunks in enumerate(by_worker)
        ]
        self._to_all = link.collectives.to_all(link.members, link.tag, [], sizes)
        self.collectives = [self._to_all]
        rows = iter(self._to_all.rows)
        self._headers: list[np.ndarray] = []
        self._flags: list[np.ndarray] = []
        answers: dict[ExchangedChunk, np.ndarray] = {}
        for chunks in by_worker:
            self._headers.append(next(rows))
            self._flags.append(next(rows)[0])
            answers.update(zip(chunks, rows))
        self._own_header, self._own_flags, *rooms = self._to_all.rooms
        buffers = Buffers(dict(zip(by_worker[rank], rooms)), {}, {}, answers)
        self._own_keys = self._keys[rank]
        self._codings: dict[str, list[Coding]] = {
            key: codings([chunks], buffers, link.arrays)
            for shards in owned
            for key, chunks in shards.items()
        }

    _SENT, _FLAGGED = 1, 2

    def _wire_size(self, worker: int, chunk: ExchangedChunk) -> WireSize:
        """Return the size of a chunk in a message; 0 bytes are used if its shard is not sent."""
        size = chunk.wire_size
        index = self._keys[worker].index(chunk.piece.tensor)

        def used(received: np.ndarray) -> int:
            if self._flags[worker][index] != self._SENT:
                return 0
            return size.most if size.used is None else size.used(received)

        return WireSize(size.most, used)

    def send(self, task: Task) -> None:
        """Encode shards, and send them to all workers."""
        request = task.job.request
        with self.meter.timing("compress_seconds"):
            for key in request.names:
                encode(self._codings[key], task.job)
        self._own_flags[:] = [
            self._SENT * (key in request.names) or self._FLAGGED * (key in request.flagged)
            for key in self._own_keys
        ]
        header.write(self._own_header, task.job.stamp_of(self._identity), ())
        self.meter.pushed_bytes += sum(self._to_all.start())

    def deliver(self, task: Task) -> None:
        """Write the shards of all workers. `task.job.request.receive` says where."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        outcome, _, _ = header.read(np.concatenate(self._headers), self._ranks)
        task.note(outcome)
        sent, request = self._with_flag(self._SENT), task.job.request
        output = request.receive(sent, self._with_flag(self._FLAGGED))
        job = replace(task.job, request=replace(request, output=output))
        with self.meter.timing("decompress_seconds"):
            for key in sent:
                for coding in self._codings[key]:
                    task.nonfinite.append(coding.deliver(job))
        self._to_all.expect()
        self.meter.steps += 1

    def _with_flag(self, flag: int) -> list[str]:
        """Return the names of the shards to which their owners gave this flag."""
        return [
            key
            for keys, flags in zip(self._keys, self._flags)
            for key, given in zip(keys, flags)
            if given == flag
        ]

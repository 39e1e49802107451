"""AllGather: the compressed all-gather of one FSDP2 module's parameters.

With differences, gathered_copies.py chooses the shards that are sent, and their form. A message
begins with a header, and then has a flag for each shard.
"""

from __future__ import annotations

from typing import Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from . import header, staging
from .coder import coder_on
from .coder_states import Tensors
from .coding import Buffers, Coding, codings
from .collectives import ToAll, WireSize
from .exchanged_chunk import PLAIN, ExchangedChunk
from .gathered_copies import GatheredCopies, check
from .header import Stamp
from .job import Job
from .sharded_compression import Unit
from .shards import Shards

_MESSAGE, _BROADCAST = 1, 2  # flags: the shard is in the message, or is broadcast later


class AllGather(Unit):
    """Gathers the parameters of one FSDP module.

    Parameters
    ----------
    shards : Shards
    dtype : torch.dtype
        The dtype in which FSDP will gather the parameters, for `empty_state`.
    differences : bool
        Whether differences travel, else the parameters themselves.
    frozen : mapping of str to Tensor
        See `GatheredCopies`.
    new_group : callable
        Returns a process group of the workers with these ranks.
    tag : int
        The tag of this module's messages in that group.
    """

    def __init__(
        self,
        shards: Shards,
        dtype: torch.dtype,
        differences: bool,
        frozen: Mapping[str, torch.Tensor],
        new_group: Callable[[Tuple[int, ...]], dist.ProcessGroup],
        tag: int,
    ) -> None:
        self.shards, self._dtype, self._differences = shards, staging.real_dtype(dtype), differences
        self._new_group, self._tag = new_group, tag
        self._to_all: Optional[ToAll] = None
        self._gathers = 0
        self._copies = GatheredCopies(shards, frozen)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Write the parameters that all workers compute with to `output_tensor`, and wait for them.

        Raises
        ------
        RuntimeError
            The parameters do not travel in one dtype, or one has a NaN or an infinity.
        """
        own = staging.as_real(input_tensor).view(-1)
        rows = staging.as_real(output_tensor).view(self.shards.workers, -1)
        if own.numel() != self.shards.size:
            raise RuntimeError(
                f"fully_shard gathers {', '.join(self.shards.sizes)} in several dtypes, or in a "
                "form of their own: compress_all_gather needs one floating-point dtype"
            )
        if self._to_all is None:
            self._open(group, own)
        if self._differences:
            self._update(own, group)
            rows.copy_(self._copies.rows)
        else:
            self._send(self.shards.split(self.shards.rank, own))
            self._receive(self.shards.split_all(rows))

    def _update(self, own: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Bring the copies up to date with the parameters of all workers."""
        if not self._copies.begun:
            self._copies.begin(own, group)
        differences, exact = self._copies.changes(own, self._uncompressed)
        self._send(differences, exact)
        nonfinite = self._copies.broadcast(self._flagged(_BROADCAST), group)
        copies = self._copies.by_key
        received = {
            key: torch.empty_like(copies[key], dtype=self._working)
            for key in self._flagged(_MESSAGE)
        }
        self._receive(received)
        for key, values in received.items():
            if key in self._uncompressed:
                copies[key].copy_(values)
            else:
                copies[key].add_(values)
        _require_finite(nonfinite)

    def forget_sent(self) -> None:
        """See `GatheredCopies`."""
        self._copies.forget_sent()

    # Messages

    def _send(self, values: Mapping[str, torch.Tensor], exact: Collection[str] = ()) -> None:
        """Compress some of this worker's shards and send them; wait for those of all workers.

        The shards in `exact` are flagged only.
        """
        job = Job(staging.Staged(values), 1.0, {})
        for key in values:
            for coding in self._codings[key]:
                coding.encode(job)
        if self._differences:
            self._flags[self.shards.rank][:] = [
                _BROADCAST if key in exact else _MESSAGE if key in values else 0
                for key in self.shards.keys(self.shards.rank)
            ]
        self._gathers += 1
        header.write(self._own_header, Stamp(self._gathers % 2**32), [])
        self._to_all.start()
        self._to_all.wait()
        outcome, _ = header.read(np.concatenate(self._headers), self._ranks)
        if outcome != header.SAME:
            raise RuntimeError(header.problem(outcome))

    def _flagged(self, flag: int) -> List[str]:
        """Return the names of the shards to which their owners gave this flag."""
        return [
            key
            for worker, flags in enumerate(self._flags)
            for key, given in zip(self.shards.keys(worker), flags)
            if given == flag
        ]

    def _receive(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Decode shards that workers have sent."""
        staged = staging.Staged(targets)
        job, nonfinite = Job(staged, 1.0, {}), []
        for key in targets:
            for coding in self._codings[key]:
                nonfinite += coding.deliver(job)
        staged.finish(1.0)
        self._to_all.expect()
        _require_finite(nonfinite)

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        group = self._new_group(tuple(dist.get_process_group_ranks(group)))
        self.shards.agree(group, like, "gather parameters", differences=self._differences)
        workers = range(self.shards.workers)
        chunks = [_chunks_of(self.shards, worker, like) for worker in workers]
        flags = [WireSize(len(self.shards.sizes))] if self._differences else []
        first = [header.wire_size(0), *flags]
        sizes = [
            [*first, *(self._wire_size(worker, chunk) for chunk in chunks[worker])]
            for worker in workers
        ]
        self._to_all = ToAll(group, self._tag, [], sizes)
        rows = iter(self._to_all.rows)
        self._flags: List[np.ndarray] = []
        self._own_header, self._headers = self._to_all.rooms[0], []
        self._ranks = dist.get_process_group_ranks(group)
        answers: Dict[ExchangedChunk, np.ndarray] = {}
        for worker_chunks in chunks:
            self._headers.append(next(rows))
            if self._differences:
                self._flags.append(next(rows)[0])
            answers.update(zip(worker_chunks, rows))
        sent = dict(zip(chunks[self.shards.rank], self._to_all.rooms[len(first) :]))
        self._working = staging.working_dtype(like.dtype)
        self._codings: Dict[str, List[Coding]] = {}
        self._uncompressed = set()
        for worker in workers:
            for key in self.shards.keys(worker):
                of_shard = [chunk for chunk in chunks[worker] if chunk.piece.tensor == key]
                self._codings[key] = codings(of_shard, Buffers(sent, {}, {}, answers))
                if all(chunk.kind == PLAIN for chunk in of_shard):
                    self._uncompressed.add(key)

    def _wire_size(self, worker: int, chunk: ExchangedChunk) -> WireSize:
        """Return the size of a chunk in a message; 0 bytes are used without its shard."""
        size = chunk.wire_size
        if not self._differences:
            return size
        position = self.shards.keys(worker).index(chunk.piece.tensor)

        def used(received: np.ndarray) -> int:
            if self._flags[worker][position] != _MESSAGE:
                return 0
            return size.most if size.used is None else size.used(received)

        return WireSize(size.most, used)

    # Checkpoints

    def carried(self) -> Tensors:
        return self._copies.carried()

    def empty_state(self) -> Tensors:
        return self._copies.empty_state(self._dtype) if self._differences else {}

    def check(self, tensors: Tensors) -> None:
        check(tensors, self.empty_state())

    def load(self, tensors: Tensors) -> None:
        self._copies.load(tensors)


def _chunks_of(shards: Shards, worker: int, like: torch.Tensor) -> List[ExchangedChunk]:
    """Return the chunks of a worker's shards."""
    return [
        shard.exchanged(
            chunk, worker, None if chunk.params is None else coder_on(like.device, chunk)
        )
        for shard in shards.cut(worker, like)
        for chunk in shard.chunks
    ]


def _require_finite(nonfinite: Sequence[str]) -> None:
    """Raise RuntimeError unless no shard has a NaN or an infinity."""
    if nonfinite:
        name = nonfinite[0].rpartition("/")[0]
        raise RuntimeError(f"parameter {name} has a NaN or an infinity")

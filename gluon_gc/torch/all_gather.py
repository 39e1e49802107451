"""AllGather: the compressed all-gather of one FSDP2 module's parameters.

With differences, each worker keeps a copy of all parameters as they were gathered last. The owner
of a shard sends the compressed difference between the shard and its copy. All workers, the owner
too, add the decoded difference to their copies. So the copies are equal on all workers, and the
next difference has the error of the last one. A shard whose bits have not changed is not sent.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from ..checkpoint import fitting
from . import staging, state_dicts
from .coder import coder_on
from .coder_states import Tensors
from .coding import Buffers, Coding, codings
from .collectives import ToAll, WireSize
from .exchanged_chunk import PLAIN, ExchangedChunk
from .job import Job
from .sharded_compression import Unit
from .shards import Shards


class AllGather(Unit):
    """Gathers the parameters of one FSDP module.

    Parameters
    ----------
    shards : Shards
    dtype : torch.dtype
        The dtype in which FSDP will gather the parameters, for `empty_state`.
    differences : bool
        Whether differences travel, else the parameters themselves.
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
        new_group: Callable[[Tuple[int, ...]], dist.ProcessGroup],
        tag: int,
    ) -> None:
        self.shards, self._dtype, self._differences = shards, staging.real_dtype(dtype), differences
        self._new_group, self._tag = new_group, tag
        self._to_all: Optional[ToAll] = None
        self._copy: Optional[torch.Tensor] = None  # shape (workers, elements of a worker)
        self._loaded: Tensors = {}

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
            rows.copy_(self._copy)
        else:
            self._send(self.shards.split(self.shards.rank, own))
            self._receive(self.shards.split_all(rows))

    # Differences

    def _update(self, own: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Bring the copy up to date with the parameters of all workers."""
        if self._copy is None:
            self._begin(own, group)
        copies, sent = self._copies, self._sent
        changed: Dict[str, torch.Tensor] = {}
        for key, values in self.shards.split(self.shards.rank, own).items():
            if not _same_bits(values, sent[key]):
                sent[key].copy_(values)
                whole = key in self._uncompressed
                changed[key] = values if whole else values.to(self._working) - copies[key]
        self._send(changed)
        received = {
            key: torch.empty_like(copies[key], dtype=self._working) for key in self._present()
        }
        self._receive(received)
        for key, values in received.items():
            if key in self._uncompressed:
                copies[key].copy_(values)
            else:
                copies[key].add_(values)

    def _begin(self, own: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Gather the first copy uncompressed: the parameters, or the loaded copy."""
        keys = self.shards.keys(self.shards.rank)
        start, sent = own, own.clone()
        if self._loaded:
            start, sent = (
                torch.cat([self._loaded[key][kind] for key in keys]).to(own)
                for kind in ("copy", "sent")
            )
            self._loaded = {}
        self._copy = own.new_empty(self.shards.workers, own.numel())
        received = [row.view(torch.uint8) for row in self._copy]
        dist.all_gather(received, start.view(torch.uint8), group=group)
        self._copies = self.shards.split_all(self._copy)
        self._sent = self.shards.split(self.shards.rank, sent)

    # Messages

    def _send(self, values: Mapping[str, torch.Tensor]) -> None:
        """Compress some of this worker's shards and send them; wait for those of all workers."""
        job = Job(staging.Staged(values), 1.0, {})
        for key in values:
            for coding in self._codings[key]:
                coding.encode(job)
        if self._differences:
            self._flags[self.shards.rank][:] = [
                key in values for key in self.shards.keys(self.shards.rank)
            ]
        self._to_all.start()
        self._to_all.wait()

    def _present(self) -> Iterator[str]:
        """Yield the names of the shards that workers have sent."""
        for worker, flags in enumerate(self._flags):
            yield from (key for key, flag in zip(self.shards.keys(worker), flags) if flag)

    def _receive(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Decode shards that workers have sent."""
        staged = staging.Staged(targets)
        job, nonfinite = Job(staged, 1.0, {}), []
        for key in targets:
            for coding in self._codings[key]:
                nonfinite += coding.deliver(job)
        staged.finish(1.0)
        self._to_all.expect()
        if nonfinite:
            name = nonfinite[0].rpartition("/")[0]
            raise RuntimeError(f"parameter {name} has a NaN or an infinity")

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        group = self._new_group(tuple(dist.get_process_group_ranks(group)))
        self.shards.agree(group, like, "gather parameters", differences=self._differences)
        workers = range(self.shards.workers)
        chunks = [_chunks_of(self.shards, worker, like) for worker in workers]
        header = [WireSize(len(self.shards.sizes))] if self._differences else []
        sizes = [
            [*header, *(self._wire_size(worker, chunk) for chunk in chunks[worker])]
            for worker in workers
        ]
        self._to_all = ToAll(group, self._tag, [], sizes)
        rows = iter(self._to_all.rows)
        self._flags: List[np.ndarray] = []
        answers: Dict[ExchangedChunk, np.ndarray] = {}
        for worker_chunks in chunks:
            if self._differences:
                self._flags.append(next(rows)[0])
            answers.update(zip(worker_chunks, rows))
        sent = dict(zip(chunks[self.shards.rank], self._to_all.rooms[len(header) :]))
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
        """Return the size of a chunk in a message; 0 bytes are used if its shard is not sent."""
        size = chunk.wire_size
        if not self._differences:
            return size
        position = self.shards.keys(worker).index(chunk.piece.tensor)

        def used(received: np.ndarray) -> int:
            if not self._flags[worker][position]:
                return 0
            return size.most if size.used is None else size.used(received)

        return WireSize(size.most, used)

    # Checkpoints

    def carried(self) -> Tensors:
        """Return the copies of this worker's shards, and the values that were sent last."""
        if self._copy is None:
            return self._loaded
        return _cloned(self._copies, self._sent)

    def empty_state(self) -> Tensors:
        """Return zeros in the shapes and dtypes of `carried`."""
        if not self._differences:
            return {}
        zeros = torch.zeros(self.shards.size, dtype=self._dtype)
        shards = self.shards.split(self.shards.rank, zeros)
        return _cloned(shards, shards)

    def check(self, tensors: Tensors) -> None:
        """Raise ValueError if these tensors do not fit."""
        there, here = (
            {(key, kind): (t.shape, t.dtype) for key in state for kind, t in state[key].items()}
            for state in (tensors, self.empty_state())
        )
        fitting.check(state_dicts.NOUN, "set of gathered copies", there, here)

    def load(self, tensors: Tensors, keeps_copies: bool) -> None:
        """Continue from the result of `carried`."""
        self._loaded, self._copy = dict(tensors), None


def _chunks_of(shards: Shards, worker: int, like: torch.Tensor) -> List[ExchangedChunk]:
    """Return the chunks of a worker's shards."""
    return [
        shard.exchanged(
            chunk, worker, None if chunk.params is None else coder_on(like.device, chunk)
        )
        for shard in shards.cut(worker, like)
        for chunk in shard.chunks
    ]


def _cloned(copies: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> Tensors:
    """Return copies of the tensors of the shards in `sent`, in host memory."""
    return {
        key: {"copy": copies[key].cpu().clone(), "sent": values.cpu().clone()}
        for key, values in sent.items()
    }


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))

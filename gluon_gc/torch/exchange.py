"""Sums of tensors over the workers of a process group, compressed on the way.

Tensors are cut into chunks, each of which has an owner among the workers. Neighbours travel
together, in two collectives: what all send to the owners, who sum it, and what these answer to all.
Three stages, on threads of their own, overlap: compress and send; sum, compress and answer;
decompress.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import agreement, env, plan
from ..compression import stream
from ..plan import Chunk, Tensor
from .channel import Channel, Gathered, Plain, Summed, TwoWay
from .coder import Coder
from .collectives import ToAll, ToOwners
from .pipeline import Pipeline

_TRANSFER_BYTES = 256 * 1024  # that a worker sends in a collective, about

Values = Mapping[str, np.ndarray]
"""Of each tensor its values, flat, in the dtype that compressors compute in."""


@dataclass
class Job:
    """Tensors on their way.

    Parameters
    ----------
    values : mapping
        What is summed, and what the sums are written to.
    scale : float
        Multiplies what this worker adds.
    ratios : mapping
        Of tensors, the previous learning rate over the current one, where it is not 1.
    done : callable
        Is told the job, and an error or None, on another thread.

    Attributes
    ----------
    nonfinite : list of str
        The tensors whose sum has a NaN or an infinity.
    """

    values: Values
    scale: float
    ratios: Mapping[str, float]
    done: Callable[["Job", Optional[BaseException]], None]
    nonfinite: List[str] = field(default_factory=list)
    transfers: int = 0


class Transfer:
    """Channels that travel together.

    Parameters
    ----------
    channels : sequence of Channel
    groups : pair of ProcessGroup
        For each of the two collectives.
    """

    def __init__(
        self, channels: Sequence[Channel], groups: Tuple[dist.ProcessGroup, dist.ProcessGroup]
    ) -> None:
        first, second = groups
        workers, rank = dist.get_world_size(first), dist.get_rank(first)
        self._gathered = [channel for channel in channels if channel.gathered]
        others = [channel for channel in channels if not channel.gathered]
        owned = [[c for c in others if c.owner == worker] for worker in range(workers)]
        self._others = [channel for of_owner in owned for channel in of_owner]
        self._mine = owned[rank]
        self._count = len(channels)
        varies = any(channel.varies for channel in channels)
        self._to_owners: Optional[ToOwners] = None
        if others:
            sizes = [[channel.to_owner for channel in of_owner] for of_owner in owned]
            self._to_owners = ToOwners(first, sizes, varies)
        gathered = [channel.to_all for channel in self._gathered]
        sizes = [[channel.to_all for channel in of_owner] for of_owner in owned]
        self._to_all = ToAll(second, gathered, sizes, varies)

    def send(self, job: Job) -> None:
        """Make what the owners get of the job's values, and send it."""
        if self._to_owners is not None:
            rooms = self._to_owners.rooms
            used = [_encode(c, job, room) for c, room in zip(self._others, rooms)]
            self._to_owners.start(used)

    def answer(self, job: Job) -> None:
        """Make what all get, and send it."""
        rooms = self._to_all.rooms
        used = [_encode(c, job, room) for c, room in zip(self._gathered, rooms)]
        if self._to_owners is not None:
            began = time.perf_counter()
            came = self._to_owners.wait()
            self._waited(time.perf_counter() - began)
            answers = rooms[len(self._gathered) :]
            used += [c.answer(rows, room) for c, rows, room in zip(self._mine, came, answers)]
        self._to_all.start(used)

    def deliver(self, job: Job) -> None:
        """Write the sums to the job's values."""
        began = time.perf_counter()
        came = self._to_all.wait()
        self._waited(time.perf_counter() - began)
        for channel, rows in zip([*self._gathered, *self._others], came):
            began = time.perf_counter()
            if not channel.deliver(rows, _values(channel, job)):
                job.nonfinite.append(channel.piece.tensor)
            channel.meter.pulled_bytes += sum(map(channel.used, rows))
            channel.meter.decompress_seconds += time.perf_counter() - began

    def _waited(self, seconds: float) -> None:
        for channel in (*self._gathered, *self._others):
            channel.meter.wait_seconds += seconds / self._count


def _values(channel: Channel, job: Job) -> np.ndarray:
    piece = channel.piece
    return job.values[piece.tensor][piece.begin : piece.end]


def _encode(channel: Channel, job: Job, room: np.ndarray) -> int:
    began = time.perf_counter()
    ratio = job.ratios.get(channel.piece.tensor, 1.0)
    used = channel.encode(_values(channel, job), job.scale, ratio, room)
    channel.meter.steps += 1
    channel.meter.pushed_bytes += used
    channel.meter.compress_seconds += time.perf_counter() - began
    return used


class Exchange:
    """Sums tensors over all workers of a process group.

    Every worker makes its exchanges, and calls their methods, in the same order.

    Parameters
    ----------
    group : ProcessGroup, optional
        By default of all workers. Its bytes travel through groups of its own, over Gloo.

    Attributes
    ----------
    rank, workers : int
        This worker's number in the group, and how many there are.
    channels : list of Channel
        All of them, in the order in which they were declared.
    """

    def __init__(self, group: Optional[dist.ProcessGroup] = None) -> None:
        self.rank, self.workers = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this worker is not in process_group")
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        first, second = (
            dist.new_group(ranks, backend="gloo", use_local_synchronization=group is not None)
            for _ in range(2)
        )
        self._groups = first, second
        self._pipeline = Pipeline([self._send, self._answer, self._deliver], self._failed)
        self._loads = [0] * self.workers
        self._tensors: Dict[str, Tensor] = {}
        self._of_tensor: Dict[str, List[Channel]] = {}
        self._transfers: Dict[Tuple[str, ...], List[Transfer]] = {}
        self._entropy = b""
        self.channels: List[Channel] = []

    # Set-up: every worker comes here with the same tensors

    def agree(self, about: Mapping[str, Any]) -> None:
        """RuntimeError unless all workers are about to do the same."""
        mine = json.dumps(agreement.describe(self.rank, about))
        everybody: List[Any] = [None] * self.workers
        dist.all_gather_object(everybody, mine, group=self._groups[0])
        problem = agreement.difference([json.loads(one) for one in everybody])
        if problem:
            raise RuntimeError(f"the workers do not fit together: {problem}")

    def declare(self, tensors: Sequence[Tensor], wires: Mapping[str, torch.dtype]) -> None:
        """Expect these tensors, in about the order in which they will be ready.

        Parameters
        ----------
        tensors : sequence of Tensor
        wires : mapping
            Of each tensor, the dtype in which it travels where it is not compressed.

        Raises
        ------
        RuntimeError
            Workers differ in version, settings or tensors.
        """
        partition, minimum = (env.get(f"BYTEPS_{name}_BYTES") for name in ("PARTITION", "MIN_COMPRESS"))
        cut = {tensor.name: plan.cut([tensor], partition, minimum) for tensor in tensors}
        self.agree(plan.described([chunk for chunks in cut.values() for chunk in chunks]))
        for tensor in tensors:
            self._tensors[tensor.name] = tensor
            made = [self._channel(tensor, c, wires[tensor.name]) for c in cut[tensor.name]]
            self._of_tensor[tensor.name] = made
            self.channels += made

    def channels_of(self, name: str) -> List[Channel]:
        """Those of a tensor."""
        return self._of_tensor[name]

    def applies_momentum(self, name: str) -> bool:
        """Whether momentum is applied to a tensor where it is compressed."""
        params = [channel.chunk.params for channel in self._of_tensor[name]]
        return all(one is not None and one.mu is not None for one in params)

    def _channel(self, tensor: Tensor, chunk: Chunk, wire: torch.dtype) -> Channel:
        """Neighbours have other owners, so that few of them are spread evenly, too."""
        owner = self._loads.index(min(self._loads))
        self._loads[owner] += chunk.message_bytes
        if chunk.params is None:
            return Plain(chunk, owner, wire, tensor.checked)
        start = self._start(tensor, chunk, self.rank)
        if chunk.gathered:
            return Gathered(chunk, owner, start)
        if not chunk.aggregated:
            return Summed(chunk, owner, start)
        aggregator = None
        if owner == self.rank:
            from_where = self._start(tensor, chunk, None)
            aggregator = Coder(chunk.params.aggregators, chunk.size, chunk.dtype, from_where)
        return TwoWay(chunk, owner, start, aggregator)

    def _start(self, tensor: Tensor, chunk: Chunk, node: Optional[int]) -> Optional[stream.State]:
        """Where the random stream of a worker, or (None) of the owner, starts."""
        if not chunk.params.compressor.traits.draws:
            return None
        if chunk.params.compressor.seed is None and not self._entropy:
            words = [os.urandom(16)]
            source = dist.get_global_rank(self._groups[0], 0)
            dist.broadcast_object_list(words, source, group=self._groups[0])
            (self._entropy,) = words
        (piece,) = chunk.slices
        return stream.start(
            chunk.params, chunk.size, node, tensor.index, piece.begin, self._entropy
        )

    def set_epoch(self, epoch: int) -> None:
        """Compress as compressors do in an epoch, counted from 0; nothing may be under way."""
        for channel in self.channels:
            channel.set_epoch(epoch)
        self._transfers.clear()

    # A step

    def start(self, job: Job) -> None:
        """Begin to sum a job's tensors, whose channels' results replace the values."""
        names = tuple(job.values)
        if names not in self._transfers:
            channels = [channel for name in names for channel in self._of_tensor[name]]
            parts = _together(channels)
            self._transfers[names] = [Transfer(part, self._groups) for part in parts]
        transfers = self._transfers[names]
        job.transfers = len(transfers)
        if not transfers:
            job.done(job, None)
        for transfer in transfers:
            self._pipeline.put((transfer, job))

    def close(self) -> None:
        """End its threads."""
        self._pipeline.close()

    @staticmethod
    def _send(item: Tuple[Transfer, Job]) -> None:
        transfer, job = item
        transfer.send(job)

    @staticmethod
    def _answer(item: Tuple[Transfer, Job]) -> None:
        transfer, job = item
        transfer.answer(job)

    @staticmethod
    def _deliver(item: Tuple[Transfer, Job]) -> None:
        transfer, job = item
        transfer.deliver(job)
        job.transfers -= 1
        if not job.transfers:
            job.done(job, None)

    def _failed(self, item: Tuple[Transfer, Job], error: BaseException) -> None:
        _, job = item
        if job.transfers:
            job.transfers = 0
            job.done(
                job,
                RuntimeError(
                    f"worker {self.rank} could not exchange gradients; a worker may have ended, or "
                    f"does something else: {error}"
                ),
            )


def _together(channels: Sequence[Channel]) -> List[List[Channel]]:
    """Channels that travel together: neighbours."""
    parts: List[List[Channel]] = []
    total = _TRANSFER_BYTES
    for channel in channels:
        if total >= _TRANSFER_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(channel)
        total += channel.to_all
    return parts

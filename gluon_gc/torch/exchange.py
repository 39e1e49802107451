"""Sums of tensors over the workers of a process group, compressed on the way.

Tensors are cut into chunks, each of which has an owner among the workers. Neighbours travel
together, in two collectives: what all send to the owners, who sum it, and what these answer to all.
Three stages, on threads of their own, overlap: compress and send; sum, compress and answer;
decompress.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import agreement, env, plan
from ..plan import Chunk, Tensor
from .channel import GATHERED, Channel
from .coder import Seeds
from .coding import Places, codings
from .collectives import ToAll, ToOwners
from .job import Job
from .pipeline import Pipeline
from .stats import Meter

_TRANSFER_BYTES = 96 * 1024  # that a worker sends in a collective, about


class Transfer:
    """Channels that travel together.

    Parameters
    ----------
    channels : sequence of Channel
    groups : pair of ProcessGroup
        For each of the two collectives.

    Attributes
    ----------
    channels : list of Channel
    meter : Meter
        Of all of them.
    """

    def __init__(
        self, channels: Sequence[Channel], groups: Tuple[dist.ProcessGroup, dist.ProcessGroup]
    ) -> None:
        first, second = groups
        workers, rank = dist.get_world_size(first), dist.get_rank(first)
        gathered = [channel for channel in channels if channel.kind == GATHERED]
        owned = [
            [c for c in channels if c.kind != GATHERED and c.owner == worker]
            for worker in range(workers)
        ]
        others = [channel for of_owner in owned for channel in of_owner]
        varies = any(channel.varies for channel in channels)
        sizes = [[channel.num_bytes for channel in of_owner] for of_owner in owned]
        self.channels, self.meter = [*gathered, *others], Meter()
        self._to_all = ToAll(second, [channel.num_bytes for channel in gathered], sizes, varies)
        sent = dict(zip(gathered, self._to_all.rooms))
        answer = dict(zip(owned[rank], self._to_all.rooms[len(gathered) :]))
        came: Dict[Channel, np.ndarray] = {}
        self._to_owners: Optional[ToOwners] = None
        if others:
            self._to_owners = ToOwners(first, sizes, varies)
            sent.update(zip(others, self._to_owners.rooms))
            came.update(zip(owned[rank], self._to_owners.rows))
        answers = dict(zip(self.channels, self._to_all.rows))
        places = Places(sent, came, answer, answers)
        self._of_gathered = codings(gathered, places)
        self._of_others = codings(others, places)
        self._sent_first = [sent[channel] for channel in others]
        self._sent_to_all = [*(sent[c] for c in gathered), *(answer[c] for c in owned[rank])]
        self._first, self._to_all_channels = others, [*gathered, *owned[rank]]

    def send(self, job: Job) -> None:
        """Make what the owners get of the job's values, and send it."""
        if self._to_owners is not None:
            with self.meter.timing("compress_seconds"):
                for coding in self._of_others:
                    coding.encode(job)
            self.meter.pushed_bytes += self._to_owners.start(_used(self._first, self._sent_first))

    def answer(self, job: Job) -> None:
        """Make what all get, and send it."""
        with self.meter.timing("compress_seconds"):
            for coding in self._of_gathered:
                coding.encode(job)
        if self._to_owners is not None:
            with self.meter.timing("wait_seconds"):
                self._to_owners.wait()
            for coding in self._of_others:
                coding.answer()
        self._to_all.start(_used(self._to_all_channels, self._sent_to_all))

    def deliver(self, job: Job) -> None:
        """Write the sums to the job's values."""
        with self.meter.timing("wait_seconds"):
            self.meter.pulled_bytes += self._to_all.wait()
        with self.meter.timing("decompress_seconds"):
            for coding in (*self._of_gathered, *self._of_others):
                job.nonfinite += coding.deliver(job)
        self.meter.steps += 1


def _used(channels: Sequence[Channel], rooms: Sequence[np.ndarray]) -> List[int]:
    """How many bytes are in use of what was written to rooms."""
    return [
        channel.coder.codec.used(room) if channel.varies else room.size
        for channel, room in zip(channels, rooms)
    ]


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
        self._seeds = Seeds(first)
        self.channels: List[Channel] = []

    # Set-up: every worker comes here with the same tensors

    def agree(self, about: Mapping[str, Any]) -> None:
        """RuntimeError unless all workers are about to do the same."""
        everybody = self.gather_objects(json.dumps(agreement.describe(self.rank, about)))
        problem = agreement.difference([json.loads(one) for one in everybody])
        if problem:
            raise RuntimeError(f"the workers do not fit together: {problem}")

    def gather_objects(self, mine: Any) -> List[Any]:
        """What all workers call this with, by rank; nothing may be under way."""
        everybody: List[Any] = [None] * self.workers
        dist.all_gather_object(everybody, mine, group=self._groups[0])
        return everybody

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
        most, least = env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        cut = {tensor.name: plan.cut([tensor], most, least) for tensor in tensors}
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
        how = (chunk, owner, wire, tensor.checked)
        if chunk.params is None:
            return Channel(*how)
        (piece,) = chunk.slices
        where = (tensor.index, piece.begin)
        coder = self._seeds.coder(chunk, chunk.params, self.rank, *where)
        aggregator = None
        if chunk.aggregated and owner == self.rank:
            aggregator = self._seeds.coder(chunk, chunk.params.aggregators, None, *where)
        return Channel(*how, coder, aggregator)

    def set_epoch(self, epoch: int) -> None:
        """Compress as compressors do in an epoch, counted from 0; nothing may be under way."""
        for channel in self.channels:
            if channel.coder is not None:
                channel.coder.set_epoch(epoch)
        self._transfers.clear()

    # A step

    def start(self, job: Job) -> None:
        """Begin to sum a job's tensors, whose channels' results replace the values."""
        names = tuple(job.values)
        if names not in self._transfers:
            self._forget(names)
            channels = [channel for name in names for channel in self._of_tensor[name]]
            parts = _together(channels)
            self._transfers[names] = [Transfer(part, self._groups) for part in parts]
        transfers = self._transfers[names]
        job.transfers = len(transfers)
        if not transfers:
            job.done(job, None)
        for transfer in transfers:
            self._pipeline.put((transfer, job))

    def _forget(self, names: Collection[str]) -> None:
        """Free what these tensors travelled in, together with others."""
        for former in [former for former in self._transfers if not set(names).isdisjoint(former)]:
            del self._transfers[former]

    def transfers(self) -> Iterator[Transfer]:
        """All of them."""
        return itertools.chain.from_iterable(self._transfers.values())

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
        total += channel.num_bytes
    return parts

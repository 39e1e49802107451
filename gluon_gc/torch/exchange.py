"""Sums of tensors over the workers of a process group, compressed on the way.

Tensors are cut into chunks, each of which has an owner among the workers. Neighbours travel
together, in two collectives: what all send to the owners, who sum it, and what these answer to all.
The stages of that are on threads of their own, and overlap. Large chunks that travel as they are
are summed by an allreduce of torch.distributed's.
"""

from __future__ import annotations

import itertools
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
import torch.distributed as dist

from .. import env, plan
from ..agreement import Facts
from ..plan import Chunk, Tensor, working_dtype
from . import closing, gpu, groups, header, machines
from .allreduce import Allreduce, sums_in_place
from .channel import Channel
from .coder import Seeds
from .gathering import agree, gather, gather_numbers
from .job import Job
from .machines import MachineTransfer
from .pipeline import Pipeline
from .sparse import SparseJob, SparseSum
from .stages import STAGES, Item, Stages
from .transfer import Transfer

_SETTING_UP = "set up their compression"
_TRANSFER_BYTES = 384 * 1024  # that a worker sends in a collective, about


class Exchange:
    """Sums tensors over all workers of a process group.

    Every worker makes its exchanges, and calls their methods, in the same order.

    Parameters
    ----------
    group : ProcessGroup, optional
        By default of all workers. Its bytes travel through groups of its own (`groups`).

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
        self._groups = groups.take(ranks, everybody=group is None)
        self.machines = machines.find(group)
        stages = STAGES[1:-1] if self.machines is None else STAGES
        self._pipeline = Pipeline(stages, self._done, self._failed)
        self._loads = [0] * self.workers
        self._tensors: Dict[str, Tensor] = {}
        self._devices: Dict[str, torch.device] = {}
        self._of_tensor: Dict[str, List[Channel]] = {}
        self._transfers: Dict[Tuple[str, ...], List[Stages]] = {}
        self._sparse: Dict[str, SparseSum] = {}
        self._tags = groups.tags(ranks)
        self._seeds = Seeds(self._groups[0])
        self.channels: List[Channel] = []
        self._closed = False
        closing.opened(self)

    # Set-up: every worker comes here with the same tensors

    def agree(self, facts: Facts, doing: str = _SETTING_UP) -> None:
        """Raise a RuntimeError unless all workers state the same facts."""
        agree(self.gather_objects, facts, doing)

    def gather_objects(self, mine: Any, doing: str = _SETTING_UP) -> List[Any]:
        """What all workers call this with, by rank; nothing may be under way.

        `doing` says in a warning of a stall what all workers must do.
        """
        return gather(mine, doing, self._groups[0])

    def gather_numbers(self, mine: Sequence[int], doing: str) -> List[Tuple[int, ...]]:
        """As `gather_objects`, for whole numbers, equally many on each worker."""
        return gather_numbers(mine, doing, self._groups[0])

    def declare(
        self,
        tensors: Sequence[Tensor],
        wires: Mapping[str, torch.dtype],
        devices: Mapping[str, torch.device],
        minimum: Optional[int] = None,
        about: Facts = (),
    ) -> None:
        """Expect these tensors, in about the order in which they will be ready.

        Parameters
        ----------
        tensors : sequence of Tensor
        wires : mapping
            Of each tensor, the dtype in which it travels where it is not compressed.
        devices : mapping
            Where each is.
        minimum : int, optional
            Smaller ones than so many bytes are not compressed; by default
            BYTEPS_MIN_COMPRESS_BYTES.
        about : Facts
            What else must be the same on all workers.

        Raises
        ------
        RuntimeError
            Workers differ in version, settings or tensors.
        """
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES") if minimum is None else minimum
        most = env.get("BYTEPS_PARTITION_BYTES")
        cut = {tensor.name: plan.cut([tensor], most, minimum) for tensor in tensors}
        chunks = list(itertools.chain.from_iterable(cut.values()))
        self.agree([*about, *plan.facts(tensors)])
        self._seeds.draw(chunks)
        for tensor in tensors:
            self._tensors[tensor.name] = tensor
            self._devices[tensor.name] = devices[tensor.name]
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
        owner = least = self._loads.index(min(self._loads))
        node, mine, local, device = self.rank, True, None, self._devices[tensor.name]
        if self.machines is not None and tensor.params.hierarchical:
            node = self.machines.number
            owner, local = divmod(owner, self.machines.local_size)
            device = gpu.CPU  # where a machine adds up what its workers have
            mine = local == self.machines.local_rank
        coder = aggregator = None
        if chunk.params is not None and mine:
            (piece,) = chunk.slices
            where = (tensor.index, piece.begin)
            coder = self._seeds.coder(chunk, chunk.params, node, *where, device)
            if chunk.aggregated and owner == node:
                aggregator = self._seeds.coder(chunk, chunk.params.aggregators, None, *where)
        working = working_dtype(tensor.dtype) if tensor.floating else "float64"
        how = (wire, working, device, tensor.checked, coder, aggregator, local)
        channel = Channel(chunk, owner, *how)
        if not sums_in_place(channel):
            self._loads[least] += chunk.message_bytes
        return channel

    def set_epoch(self, epoch: int) -> None:
        """Compress as compressors do in an epoch, counted from 0; nothing may be under way."""
        for channel in self.channels:
            if channel.coder is not None:
                channel.coder.set_epoch(epoch)
        self._transfers.clear()

    # A step

    def start(self, job: Job) -> None:
        """Begin to sum a job's tensors, whose channels' results replace the values."""
        self.require_open()
        names = tuple(job.staged.values)
        for name in names:
            if self._devices[name] != job.staged.device:
                raise ValueError(
                    f"tensor '{name}' is on {job.staged.device}, but was on {self._devices[name]} "
                    "when its compression was set up"
                )
        if names not in self._transfers:
            self._forget(names)
            channels = [channel for name in names for channel in self._of_tensor[name]]
            self._transfers[names] = list(self._transfers_of(channels))
        transfers = self._transfers[names]
        job.transfers = len(transfers)
        if not transfers:
            _tell(job, None)
        for transfer in transfers:
            self._pipeline.put(Item(transfer, job))

    def start_sparse(self, job: SparseJob) -> None:
        """Begin to average a sparse tensor."""
        self.require_open()
        if job.name not in self._sparse:
            self._sparse[job.name] = SparseSum(job.name, self._groups)
        job.transfers = 1
        self._pipeline.put(Item(self._sparse[job.name], job))

    def require_open(self) -> None:
        """RuntimeError if it is closed."""
        if self._closed:
            raise RuntimeError(
                "nothing can be averaged after bps.shutdown() or bps.suspend(); what uses "
                "torch.distributed has to be made anew"
            )

    def _transfers_of(self, channels: Sequence[Channel]) -> Iterator[Stages]:
        """What these travel in, the ones that take the most stages first."""
        in_place = [channel for channel in channels if sums_in_place(channel)]
        others = [channel for channel in channels if not sums_in_place(channel)]
        for part in _together([channel for channel in others if channel.local is not None]):
            yield MachineTransfer(part, self.machines, next(self._tags))
        for part in _together([channel for channel in others if channel.local is None]):
            yield Transfer(part, self._groups, next(self._tags))
        for _, of_tensor in itertools.groupby(in_place, lambda channel: channel.piece.tensor):
            yield Allreduce(list(of_tensor), self._groups[0])

    def _forget(self, names: Collection[str]) -> None:
        """Free what these tensors travelled in, together with others."""
        for former in [former for former in self._transfers if not set(names).isdisjoint(former)]:
            del self._transfers[former]

    def transfers(self) -> Iterator[Stages]:
        """All of them."""
        return itertools.chain(*self._transfers.values(), self._sparse.values())

    def take_back(self, names: Iterable[str]) -> None:
        """Undo for these tensors the last exchange, in which coders kept copies of their state.

        Where they kept none, they begin anew. Nothing may be under way.
        """
        for channel in itertools.chain.from_iterable(map(self.channels_of, names)):
            for coder in (channel.coder, channel.aggregator):
                if coder is not None:
                    coder.take_back()

    def close(self) -> None:
        """End its threads, and give its groups back."""
        if not self._closed:
            self._closed = True
            self._pipeline.close()
            self._transfers.clear()
            groups.give_back(self._groups)
            if self.machines is not None:
                self.machines.close()

    @staticmethod
    def _done(item: Item) -> None:
        job = item.job
        job.transfers -= 1
        if not job.transfers:
            problem = header.problem(job.outcome)
            _tell(job, RuntimeError(problem) if problem else None)

    @staticmethod
    def _failed(item: Item, error: BaseException) -> None:
        job = item.job
        if job.transfers:
            job.transfers = 0
            _tell(
                job,
                RuntimeError(
                    "gradients could not be exchanged; a worker may have ended, or does something "
                    f"else: {error}"
                ),
            )


def _tell(job: Job, error: Optional[BaseException]) -> None:
    """Tell that a job is done; if that fails, tell why, since somebody waits."""
    try:
        job.done(job, error)
    except Exception as failed:
        job.done(job, error or failed)


def _together(channels: Sequence[Channel]) -> List[List[Channel]]:
    """Channels that travel together: neighbours."""
    parts: List[List[Channel]] = []
    total = _TRANSFER_BYTES
    for channel in channels:
        if total >= _TRANSFER_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(channel)
        total += channel.chunk.message_bytes
    return parts

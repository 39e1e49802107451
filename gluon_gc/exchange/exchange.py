"""The exchange: sums tensors over the workers of a process group, in compressed form.

Tensors are cut into chunks. Each chunk has an owner, which is one of the workers:

    every worker  -- payload -->  owner  -- compressed sum -->  all workers

A transfer is a set of neighbouring chunks that share these two collectives. Its stages (encode,
sum, decode) run on threads of their own, so that transfers overlap. Large uncompressed chunks do
not need an owner: torch.distributed's all-reduce sums them.
"""

from __future__ import annotations

import itertools
import weakref
from functools import partial
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
import torch.distributed as dist

from .. import env, plan
from ..agreement import Facts
from ..plan import Chunk
from . import closing, gpu, groups, header, machines, nccl
from .allreduce import LARGE_BYTES, sums_in_place
from .coder import Coders
from .declared_tensor import DeclaredTensor
from .exchanged_chunk import ExchangedChunk
from .gathering import agree, gather, gather_numbers, gather_to_first
from .header import OutOfStepError
from .job import Job
from .pipeline import Pipeline
from .sparse import SparseJob
from .stages import STAGES, Item
from .transfers import Transfers, abandon

_SETTING_UP = "set up their compression"
_OWNED_BYTES = 16 * 1024  # the most bytes of a chunk whose owner sums values


class Exchange:
    """Sums tensors over all workers of a process group.

    All workers must create their exchanges in the same order, and call their methods in the same
    order.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all workers. The data travels in other groups of the same workers, which the module
        `groups` makes.

    Attributes
    ----------
    rank, workers : int
        This worker's rank in the group, and the number of workers in the group.
    machines : Machines, optional
        The machines that sum their workers' values first; None if there are none.
    chunks : list of ExchangedChunk
        The chunks of all tensors, in the order of their declaration.
    transfers : Transfers
    """

    def __init__(self, group: Optional[dist.ProcessGroup] = None) -> None:
        groups.require_init()
        self.rank, self.workers = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this worker is not in process_group")
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._ranks, self._everybody = ranks, group is None
        groups.settle(group)
        self._groups = groups.take(ranks, self._everybody)
        self.machines = machines.find(group)
        self._of_tensor: Dict[str, List[ExchangedChunk]] = {}
        self.transfers = Transfers(self._groups, ranks, self.machines, self._of_tensor.__getitem__)
        stages = STAGES[1:-1] if self.machines is None else STAGES
        self._names: Dict[int, str] = {}  # of parameters, by their numbers in samples of weights
        self._unused: Set[str] = set()  # tensors that were never exchanged
        done = partial(self._done, self._names, self._unused)
        self._pipeline = Pipeline(stages, done, self._failed, self.transfers.broken)
        self._numbers = itertools.count()
        self._loads = [0] * self.workers
        self._tensors: Dict[str, DeclaredTensor] = {}
        self._coders = Coders(self._groups[0])
        self.chunks: List[ExchangedChunk] = []
        self._closed = False
        self._release = weakref.finalize(
            self, _release, self._pipeline, self.transfers, self._groups, self.machines
        )
        closing.opened(self)

    # Set-up

    def agree(self, facts: Facts, doing: str = _SETTING_UP) -> None:
        """Raise a RuntimeError unless all workers state the same facts.

        `doing` is the common action of the workers, for the warning about a worker that does not
        come.
        """
        agree(self.gather_objects, facts, doing)

    def gather_objects(self, mine: Any, doing: str = _SETTING_UP) -> List[Any]:
        """Return the objects of all workers, by rank. No job may be under way.

        `doing` is the common action of the workers, for the warning about a worker that does not
        come.
        """
        return gather(mine, doing, self._groups[0])

    def gather_to_first(self, mine: Any, doing: str) -> Optional[List[Any]]:
        """Like `gather_objects`, but only the worker with rank 0 gets a list. Others get None."""
        return gather_to_first(mine, doing, self._groups[0])

    def gather_numbers(self, mine: Sequence[int], doing: str) -> List[Tuple[int, ...]]:
        """Like `gather_objects`, for integers. Each worker passes equally many."""
        return gather_numbers(mine, doing, self._groups[0])

    def declare(
        self, tensors: Sequence[DeclaredTensor], minimum: Optional[int] = None, about: Facts = ()
    ) -> None:
        """Prepare the exchange of these tensors. All workers call this with the same tensors.

        Parameters
        ----------
        tensors : sequence of DeclaredTensor
            In the approximate order in which they will be ready.
        minimum : int, optional
            Tensors with fewer bytes are not compressed. Default: BYTEPS_MIN_COMPRESS_BYTES.
        about : Facts
            Additional facts that must be the same on all workers.

        Raises
        ------
        RuntimeError
            The workers have different versions, settings or tensors.
        """
        minimum = env.get("BYTEPS_MIN_COMPRESS_BYTES") if minimum is None else minimum
        plan.warn_if_uncompressed([tensor.plan for tensor in tensors], minimum)
        cut = [(tensor, _cut(tensor, minimum)) for tensor in tensors]
        over_nccl = {t.plan.name for t in tensors if self._may_use_nccl(t)}
        engines = [
            (f"tensor '{t.plan.name}'", {"over_nccl": t.plan.name in over_nccl}) for t in tensors
        ]
        self.agree([*about, *plan.facts([tensor.plan for tensor in tensors]), *engines])
        if over_nccl and self.transfers.nccl_groups is None:
            self.transfers.nccl_groups = groups.take(self._ranks, self._everybody, nccl.new_group)
        self._coders.draw([chunk for _, chunks in cut for chunk in chunks])
        for tensor, chunks in cut:
            name = tensor.plan.name
            self._tensors[name], self._names[1 + tensor.plan.index] = tensor, name
            self._unused.add(name)
            self._of_tensor[name] = [
                self._exchanged_chunk(tensor, chunk, name in over_nccl) for chunk in chunks
            ]
            self.chunks += self._of_tensor[name]

    def _may_use_nccl(self, tensor: DeclaredTensor) -> bool:
        """Return whether a tensor's payloads stay in GPU memory, if their length is fixed."""
        params = tensor.plan.params
        sums_on_host = self.machines is not None and params.hierarchical
        if not nccl.is_chosen() or params.compressor is None or sums_on_host:
            return False
        return gpu.has_kernels(tensor.device, params.compressor)

    def _exchanged_chunk(
        self, tensor: DeclaredTensor, chunk: Chunk, may_use_nccl: bool
    ) -> ExchangedChunk:
        """Return a chunk with its coders and its owner: the worker with the fewest bytes so far."""
        owner = least = self._loads.index(min(self._loads))
        node, mine, local, device = self.rank, True, None, tensor.device
        if self.machines is not None and tensor.plan.params.hierarchical:
            node = self.machines.number
            owner, local = divmod(owner, self.machines.local_size)
            device = gpu.CPU  # a machine sums its workers' values in host memory
            mine = local == self.machines.local_rank
        coder, aggregator, over_nccl = None, None, False
        if chunk.params is not None and mine:
            index, begin = tensor.plan.index, chunk.slices[0].begin
            coder = self._coders.of_worker(chunk, node, index, begin, device)
            over_nccl = may_use_nccl and chunk.aggregated and coder.has_fixed_length
            if chunk.aggregated and owner == node:
                where = device if over_nccl else None
                aggregator = self._coders.of_aggregator(chunk, index, begin, where)
        exchanged = ExchangedChunk(
            chunk,
            owner,
            tensor.wire,
            plan.working_dtype(tensor.plan.dtype) if tensor.plan.floating else "float64",
            device,
            tensor.plan.checked,
            coder,
            aggregator,
            local,
            over_nccl,
        )
        if not sums_in_place(exchanged):
            self._loads[least] += chunk.message_bytes
        return exchanged

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, for compressors with a warm-up. No job may be under way."""
        for chunk in self.chunks:
            if chunk.coder is not None:
                chunk.coder.set_epoch(epoch)
        self.transfers.clear()

    def set_momentum(self, mu: float) -> None:
        """Set the coefficient of all momentum. No job may be under way."""
        for chunk in self.chunks:
            if chunk.coder is not None:
                chunk.coder.set_momentum(mu)

    def replace_momentum(self, name: str, values: torch.Tensor) -> None:
        """Replace the momentum of a tensor's sum over all workers. No job may be under way.

        `values` are flat, and the same on all workers. Each sender gets an equal share.
        """
        for chunk in self._of_tensor[name]:
            senders = self.workers if chunk.local is None else self.machines.count
            if chunk.coder is not None and chunk.coder.codec.momentum:
                part = values[chunk.piece.begin : chunk.piece.end].cpu().numpy()
                chunk.coder.replace_momentum(part / senders)

    # A step

    def start(self, job: Job) -> None:
        """Start to sum the tensors of a job. The sums replace the values."""
        self.require_open()
        names = tuple(job.staged.values)
        for name in names:
            declared_device = self._tensors[name].device
            if declared_device != job.staged.device:
                raise ValueError(
                    f"tensor '{name}' is on {job.staged.device}, but was on {declared_device} "
                    "when its compression was set up"
                )
        self._unused.difference_update(names)
        job.number = next(self._numbers)
        transfers = self.transfers.of(names)
        job.transfers = len(transfers)
        if not transfers:
            _finish(job, None)
        for transfer in transfers:
            self._pipeline.put(Item(transfer, job))

    def start_sparse(self, job: SparseJob) -> None:
        """Start to average a sparse tensor."""
        self.require_open()
        self._unused.discard(job.name)
        job.number, job.transfers = next(self._numbers), 1
        self._pipeline.put(Item(self.transfers.of_sparse(job.name), job))

    def require_open(self) -> None:
        """Raise a RuntimeError if the exchange is closed."""
        if self._closed:
            raise RuntimeError(
                "nothing can be averaged after bps.shutdown() or bps.suspend(): create the objects "
                "that use torch.distributed again"
            )

    def take_back(self, names: Iterable[str]) -> None:
        """Undo the last exchange of these tensors, see `Coder.turn`. No job may be under way."""
        for chunk in itertools.chain.from_iterable(self._of_tensor[name] for name in names):
            for coder in (chunk.coder, chunk.aggregator):
                if coder is not None:
                    coder.take_back()

    def close(self) -> None:
        """Stop the threads, and release the process groups."""
        if not self._closed:
            self._closed = True
            self._release()

    @staticmethod
    def _done(names: Mapping[int, str], unused: Collection[str], item: Item) -> None:
        job = item.job
        job.transfers -= 1
        if not job.transfers:
            problem = header.problem(job.outcome, names, unused)
            _finish(job, RuntimeError(problem) if problem else None)

    @staticmethod
    def _failed(item: Item, error: BaseException) -> None:
        job = item.job
        if isinstance(error, OutOfStepError):
            abandon([item.transfer], error.outcome)  # it may be newer than the error
        if job.transfers:
            job.transfers = 0
            if not isinstance(error, OutOfStepError):
                error = RuntimeError(
                    "gradients could not be exchanged: another worker may have ended, or made a "
                    f"different call: {error}"
                )
            _finish(job, error)


def _release(
    pipeline: Pipeline, transfers: Transfers, pair: groups.Pair, found: Optional[machines.Machines]
) -> None:
    """Stop the threads of an exchange that is closed or garbage, and release its groups."""
    pipeline.close()
    if transfers.out_of_step:
        groups.keep(transfers)
    else:
        transfers.clear()
    groups.give_back(pair)
    if transfers.nccl_groups is not None:
        groups.give_back(transfers.nccl_groups)
    if found is not None:
        found.close()


def _cut(tensor: DeclaredTensor, minimum: int) -> List[Chunk]:
    """Cut a tensor. An uncompressed one is cut into small chunks, so that owners share its bytes.

    If it is large, it has no owner (`sums_in_place`), and is not cut smaller.
    """
    most, num_bytes = env.get("BYTEPS_PARTITION_BYTES"), tensor.plan.size * tensor.wire.itemsize
    if num_bytes < LARGE_BYTES and not plan.travels_compressed(tensor.plan, minimum):
        most = min(most, _OWNED_BYTES)
    return plan.cut([tensor.plan], most, minimum)


def _finish(job: Job, error: Optional[BaseException]) -> None:
    """Call the job's `done`. If it raises, call it with its error: somebody waits for the job."""
    try:
        job.done(job, error)
    except Exception as failed:
        job.done(job, error or failed)

"""The exchange: sums tensors over workers, in compressed form.

Tensors are cut into chunks. Each chunk has an owner, which is one of the workers:

    every worker  -- payload -->  owner  -- compressed sum -->  all workers

A transfer is a set of neighbouring chunks that share these two collectives. Its stages (encode,
sum, decode) run on threads of their own, so that transfers overlap. Large uncompressed chunks do
not need an owner: the engine's all-reduce sums them.

A `Lane` has the tensors of one kind: the gradients, or the vectors of one kind of round. All lanes
of an `Exchange` share its threads and connections.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Iterable, NamedTuple, Sequence

import numpy as np

from .. import env
from ..log import warn_once
from . import header, plan
from .agreement import Facts, agree
from .allreduce import LARGE_BYTES, sums_in_place
from .arrays import Arrays, Values
from .chunk import ExchangedChunk, Inside
from .coder import StreamStarts
from .header import SAME, OutOfStepError, Stamp
from .job import Done, Job, Request, Result, Task
from .machines import Machines
from .pipeline import Pipeline
from .plan import Chunk
from .statistics import Busy, Meter
from .transfer import STAGES, Link, Stages
from .transfers import Transfers
from .transport import Members, PeerError

_SETTING_UP = "set up their compression"
_OWNED_BYTES = 16 * 1024  # the most bytes of a chunk whose owner sums values


class DeclaredTensor(NamedTuple):
    """A tensor that workers will exchange."""

    plan: plan.Tensor
    wire: str  # the dtype of its values if they are sent uncompressed
    device: Any

    @property
    def working(self) -> str:
        """The dtype of its values before and after the exchange."""
        return plan.working_dtype(self.plan.dtype) if self.plan.floating else "float64"

    def exchanged(
        self, chunk: Chunk, owner: int, arrays: Arrays, device: Any, *coders: Any, **more: Any
    ) -> ExchangedChunk:
        """Return a chunk of this tensor with its owner and coders; see `ExchangedChunk`."""
        values = self.wire, arrays.itemsize(self.wire), self.working, device, self.plan.checked
        return ExchangedChunk(chunk, owner, *values, *coders, **more)


class Exchange:
    """Sums tensors over its members.

    All workers must create their exchanges in the same order, and call their methods in the same
    order. `machines` sum their workers' values first; None if there are none.
    """

    def __init__(self, members: Members, arrays: Arrays, machines: Machines | None = None) -> None:
        self.members, self.arrays, self.machines = members, arrays, machines
        self.rank, self.workers = members.rank, len(members.ranks)
        self.transfers = Transfers(members, arrays, machines)
        self.streams = StreamStarts(lambda own: members.gather(own, _SETTING_UP)[0])
        self.busy = Busy()
        self._progress = _Progress(self.transfers, self.busy)
        stages = STAGES[1:-1] if machines is None else STAGES
        self._pipeline = Pipeline(
            stages, self._progress.done, self._progress.failed, self.transfers.broken
        )
        self._numbers, self._lanes = itertools.count(), itertools.count()
        self._closed = False
        self._release = weakref.finalize(
            self, _release, self._pipeline, self.transfers, members, machines
        )

    def agree(self, facts: Facts, doing: str = _SETTING_UP) -> None:
        """Raise a RuntimeError unless all workers state the same facts.

        `doing` is the common action of the workers, for the warning about a worker that does not
        come.
        """
        _agree(self.members, facts, doing)

    def gather_objects(self, mine: Any, doing: str = _SETTING_UP) -> list[Any]:
        """Return the objects of all workers, by rank. No job may be under way; see `agree`."""
        return self.members.gather(mine, doing)

    def lane(self) -> Lane:
        """Return a new lane. All workers call this."""
        return Lane(self, next(self._lanes))

    def senders(self, chunk: ExchangedChunk) -> int:
        """Return how many workers compress a chunk, or how many machines if these sum it first."""
        return self.workers if chunk.inside is None else self.machines.count

    def know(self, tensors: Iterable[plan.Tensor]) -> None:
        """Know the names of tensors, for messages about weights that differ."""
        for tensor in tensors:
            self._progress.names[1 + tensor.index] = tensor.name
            self._progress.unused.add(tensor.name)

    def start(self, request: Request, transfers: Sequence[Stages], done: Done) -> None:
        """Start to exchange a request's tensors. `done` is called on another thread at the end."""
        self.require_open()
        divisor = request.divisor * (self.workers if request.average else 1)
        job = Job(request, next(self._numbers), 1.0 / divisor)
        self._progress.unused.difference_update(request.names)
        if request.announced is not None:
            transfers = [
                *self.transfers.of("announcement", self._announcement),
                *transfers,
            ]
        self._progress.begin(job, len(transfers), done)
        for transfer in transfers:
            self._pipeline.put(Task(transfer, job))

    def _announcement(self) -> list[Stages]:
        return [_Announcement(self.transfers.link(0))]

    def require_open(self) -> None:
        """Raise a RuntimeError if the exchange is closed."""
        if self._closed:
            raise RuntimeError(
                "nothing can be averaged after bps.shutdown() or bps.suspend(): create the objects "
                "that use torch.distributed again"
            )

    def close(self) -> None:
        """Stop the threads, and release the connections."""
        if not self._closed:
            self._closed = True
            self._release()


class Lane:
    """The tensors of one kind in an exchange. `chunks` has their chunks in order."""

    def __init__(self, exchange: Exchange, number: int) -> None:
        self.exchange, self._number = exchange, number
        self.chunks: list[ExchangedChunk] = []
        self._of_tensor: dict[str, list[ExchangedChunk]] = {}
        self._tensors: dict[str, DeclaredTensor] = {}
        self._loads = [0] * exchange.workers  # bytes by owner
        # The keys of its transfers: its number, and the tensors with their device and dtypes.
        self._kept: set[tuple[int, tuple[str, ...], Any, tuple[str, ...]]] = set()

    def declare(
        self, tensors: Sequence[DeclaredTensor], minimum: int | None = None, about: Facts = ()
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
        plans = [tensor.plan for tensor in tensors]
        plan.warn_if_uncompressed(plans, minimum)
        if any(t.plan.params.inner is not None and self._machines(t) is None for t in tensors):
            warn_once(
                "compression_params['inner'] has no effect: there are no machines with several "
                "workers that sum their gradients before they exchange them"
            )
        on_gpu = {t.plan.name for t in tensors if self._stays_on_gpu(t)}
        engines = [
            (f"tensor '{tensor.name}'", {"over_nccl": tensor.name in on_gpu}) for tensor in plans
        ]
        self.exchange.agree([*about, *plan.facts(plans), *engines])
        cut = [(tensor, self._cut(tensor, minimum)) for tensor in tensors]
        for tensor in tensors:
            if tensor.plan.name in on_gpu:
                for members in self._members(tensor):
                    self.exchange.arrays.device_collectives(tensor.device, members)
        self.exchange.streams.draw([chunk for _, chunks in cut for chunk in chunks])
        self.exchange.know(plans)
        for tensor, chunks in cut:
            name = tensor.plan.name
            self._tensors[name] = tensor
            self._of_tensor[name] = [
                self._exchanged_chunk(tensor, chunk, name in on_gpu) for chunk in chunks
            ]
            self.chunks += self._of_tensor[name]

    def uncompressed(self) -> Lane:
        """Return a new lane of the same tensors, each with the name exact_of(NAME).

        All workers call this. The tensors travel in at least float32.
        """
        lane, count = self.exchange.lane(), len(self._tensors)
        tensors = []
        for name, (planned, wire, device) in self._tensors.items():
            exact = replace(
                planned,
                name=exact_of(name),
                params=planned.params.uncompressed,
                index=count + planned.index,
                on_nonfinite="propagate",
            )
            wire = plan.working_dtype(planned.dtype) if planned.floating else wire
            tensors.append(DeclaredTensor(exact, wire, device))
        lane.declare(tensors)
        return lane

    def _machines(self, tensor: DeclaredTensor) -> Machines | None:
        """Return the machines that sum a tensor before it is exchanged; None if they do not."""
        return self.exchange.machines if tensor.plan.params.hierarchical else None

    def _members(self, tensor: DeclaredTensor) -> Sequence[Members]:
        """Return the groups of workers that exchange parts of a tensor."""
        machines = self._machines(tensor)
        return (self.exchange.members,) if machines is None else (machines.inside, machines.across)

    def _stays_on_gpu(self, tensor: DeclaredTensor) -> bool:
        """Return whether a tensor's payloads stay in GPU memory, if their length is fixed.

        If machines sum it first: whether its values do, or the payloads of the inner compressor.
        """
        params, keeps_payloads = tensor.plan.params, self.exchange.arrays.keeps_payloads
        if self._machines(tensor) is None:
            compressor = params.compressor
            return compressor is not None and keeps_payloads(tensor.device, compressor)
        inner = params.inner
        return keeps_payloads(tensor.device, inner.compressor if inner is not None else None)

    def _cut(self, tensor: DeclaredTensor, minimum: int) -> list[Chunk]:
        """Cut a tensor. An uncompressed one is cut into small chunks: owners share its bytes.

        If it is large, it has no owner (`sums_in_place`), and is not cut smaller.
        """
        most = env.get("BYTEPS_PARTITION_BYTES")
        num_bytes = tensor.plan.size * self.exchange.arrays.itemsize(tensor.wire)
        if num_bytes < LARGE_BYTES and not plan.travels_compressed(tensor.plan, minimum):
            most = min(most, _OWNED_BYTES)
        return plan.cut([tensor.plan], most, minimum)

    def _exchanged_chunk(
        self, tensor: DeclaredTensor, chunk: Chunk, may_stay_on_gpu: bool
    ) -> ExchangedChunk:
        """Return a chunk with its coders and its owner: the worker with the fewest bytes so far."""
        arrays, machines = self.exchange.arrays, self._machines(tensor)
        owner = least = self._loads.index(min(self._loads))
        node, mine, inside, device = self.exchange.rank, True, None, tensor.device
        coder, aggregator, on_gpu = None, None, False
        if machines is not None:
            node = machines.number
            owner, local = divmod(owner, machines.local_size)
            inside = self._inside(tensor, chunk, local, may_stay_on_gpu)
            on_gpu = inside.to_all.on_gpu and inside.to_all.coder is not None
            device = tensor.device if inside.to_owner.on_gpu else arrays.host
            mine = local == machines.local_rank
        if chunk.params is not None and mine:
            start, coder_of = self.exchange.streams.start, arrays.coder
            index, begin = tensor.plan.index, tensor.plan.offset + chunk.slices[0].begin
            size = chunk.size, chunk.dtype
            coder = coder_of(device, chunk.params, *size, start(chunk, node, index, begin))
            if inside is None:
                on_gpu = may_stay_on_gpu and chunk.aggregated and coder.has_fixed_length
            if chunk.aggregated and owner == node:
                params, start_of_sums = chunk.params.aggregators, start(chunk, None, index, begin)
                where = device if on_gpu else arrays.host
                aggregator = coder_of(where, params, *size, start_of_sums)
        exchanged = tensor.exchanged(
            chunk, owner, arrays, device, coder, aggregator, inside=inside, on_gpu=on_gpu
        )
        if not sums_in_place(exchanged, arrays):
            self._loads[least] += chunk.message_bytes
        return exchanged

    def _inside(
        self, tensor: DeclaredTensor, chunk: Chunk, local: int, stays_on_gpu: bool
    ) -> Inside:
        """Return how a chunk travels inside a machine. Workers with rank `local` exchange it."""
        arrays, device = self.exchange.arrays, tensor.device
        size, params = (chunk.size, chunk.dtype), chunk.params
        inner, own_plan, decoder, senders = None, replace(chunk, params=None), None, 1
        if params is not None and params.inner is not None:
            own_plan = replace(chunk, params=params.inner)
            node = self.exchange.machines.count + self.exchange.rank  # of no machine
            index, begin = tensor.plan.index, chunk.slices[0].begin
            start = self.exchange.streams.start(own_plan, node, index, begin)
            inner = arrays.coder(
                device if stays_on_gpu else arrays.host, params.inner, *size, start
            )
            if stays_on_gpu and not inner.has_fixed_length:
                stays_on_gpu = False
                inner = arrays.coder(arrays.host, params.inner, *size, start)
        if chunk.aggregated or chunk.gathered:
            decoder = arrays.coder(device, params.aggregators, *size, decodes_only=True)
            senders = self.exchange.machines.count if chunk.gathered else 1
            values_bytes = chunk.size * arrays.itemsize(chunk.dtype)
            forwards = senders * decoder.codec.payload_bytes < values_bytes
            if stays_on_gpu:  # a GPU does not check payloads, so none may come from host memory
                fits = chunk.aggregated and decoder.has_fixed_length
                forwards = fits and arrays.keeps_payloads(device, params.compressor)
            decoder, senders = (decoder, senders) if forwards else (None, 1)
        values = tensor._replace(wire=tensor.working)
        to_owner = values.exchanged(own_plan, local, arrays, device, inner, on_gpu=stays_on_gpu)
        answer = tensor if decoder is not None or params is None else values
        to_all = answer.exchanged(
            chunk, local, arrays, device, decoder, on_gpu=stays_on_gpu, senders=senders
        )
        return Inside(local, to_owner, to_all)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, for compressors with a warm-up. No job may be under way."""
        inside = [chunk.inside.to_all for chunk in self.chunks if chunk.inside is not None]
        for chunk in (*self.chunks, *inside):
            if chunk.coder is not None:
                chunk.coder.set_epoch(epoch)
        self.close()

    def set_momentum(self, mu: float) -> None:
        """Set the coefficient of all momentum. No job may be under way."""
        for chunk in self.chunks:
            if chunk.coder is not None:
                chunk.coder.set_momentum(mu)

    def replace_momentum(self, name: str, values: np.ndarray) -> None:
        """Replace the momentum of a tensor's sum over all workers. No job may be under way.

        `values` are flat, and the same on all workers. Each sender gets an equal share.
        """
        for chunk in self._of_tensor[name]:
            if chunk.coder is not None and chunk.coder.codec.momentum:
                own = values[chunk.piece.begin : chunk.piece.end] / self.exchange.senders(chunk)
                chunk.coder.replace_momentum(own)

    def start(self, request: Request, done: Done) -> None:
        """Start to exchange dense tensors. `done` is called on another thread at the end."""
        self.exchange.start(request, self._transfers(request.values), done)

    def _transfers(self, values: Values) -> list[Stages]:
        """Return the transfers of tensors that are exchanged in one job."""
        names = tuple(values.names)
        transfers = self.exchange.transfers
        key = (self._number, names, values.device, values.dtypes)
        if key not in self._kept:
            self._require_declared(values)
            old_keys = [old for old in self._kept if not set(names).isdisjoint(old[1])]
            transfers.drop(old_keys)
            self._kept.difference_update(old_keys)
            self._kept.add(key)
        return transfers.of(
            key, lambda: transfers.made([c for name in names for c in self._of_tensor[name]])
        )

    def _require_declared(self, values: Values) -> None:
        for name, dtype in zip(values.names, values.dtypes):
            declared = self._tensors[name]
            if declared.device != values.device:
                raise ValueError(
                    f"tensor '{name}' is on {values.device}, but was on {declared.device} when its "
                    "compression was set up"
                )
            if declared.working != dtype:
                raise ValueError(
                    f"tensor '{name}' is {dtype}, but was {declared.working} when its compression "
                    "was set up"
                )

    def close(self) -> None:
        """Forget the transfers. They are made again when needed."""
        self.exchange.transfers.drop(self._kept)
        self._kept.clear()

    def take_back(self, names: Iterable[str]) -> None:
        """Undo the last exchange of these tensors, see `Coder.turn`. No job may be under way."""
        for chunk in itertools.chain.from_iterable(self._of_tensor[name] for name in names):
            inner = chunk.inside.to_owner.coder if chunk.inside is not None else None
            for coder in (chunk.coder, chunk.aggregator, inner):
                if coder is not None:
                    coder.take_back()


def exact_of(name: str) -> str:
    """Return the name of the exact average of a tensor, see `Lane.uncompressed`."""
    return f"{name}, uncompressed"


def _agree(members: Members, facts: Facts, doing: str) -> None:
    """See `Exchange.agree`."""
    agree(members.ranks[members.rank], facts, partial(members.gather, doing=doing))


class _Announcement(Stages):
    """The first transfer of a job with `Request.announced`: a checksum from each worker to all.

    Workers that request different tensors would wait for each other for ever. With an announcement,
    all of them notice it, and raise an error that names the difference.
    """

    def __init__(self, link: Link) -> None:
        self._members, self.meter = link.members, Meter()
        sizes = [header.wire_size(0)]
        self._to_all = link.collectives.to_all(
            link.members, link.tag, sizes, [[] for _ in link.members.ranks]
        )
        self.collectives = [self._to_all]

    def answer(self, task: Task) -> None:
        """Compare the checksums of all workers. The tensors are on their way already."""
        announced = task.job.request.announced
        header.write(self._to_all.rooms[0], Stamp(tensors=announced.checksum), ())
        self._to_all.start()
        self._to_all.wait()
        (rows,) = self._to_all.rows
        outcome, _, _ = header.read(rows, self._members.ranks)
        self._to_all.expect()
        header.require_none_failed(outcome)
        if outcome != header.SAME:
            try:
                _agree(self._members, announced.facts(), announced.doing)
            except RuntimeError as error:
                raise OutOfStepError(str(error)) from error
            raise OutOfStepError(header.problem(outcome), outcome)


@dataclass
class _Progress:
    """The jobs under way. Only the last thread of the pipeline ends them."""

    transfers: Transfers
    busy: Busy
    names: dict[int, str] = field(default_factory=dict)  # by their numbers in samples of weights
    unused: set[str] = field(default_factory=set)  # tensors that were never exchanged
    _under_way: dict[int, _UnderWay] = field(default_factory=dict)

    def begin(self, job: Job, transfers: int, done: Done) -> None:
        """Expect the end of a job's transfers."""
        under_way = _UnderWay(transfers, done)
        if transfers:
            self.busy.add(1)
            self._under_way[job.number] = under_way
        else:
            under_way.finish(Result((), ()), None)

    def done(self, task: Task) -> None:
        """End a task, and its job if this was the last transfer."""
        under_way = self._under_way[task.job.number]
        under_way.transfers -= 1
        under_way.nonfinite += task.nonfinite
        under_way.unused |= task.unused
        if task.outcome != SAME:
            under_way.outcome = task.outcome
        if not under_way.transfers:
            nonfinite = sorted({*itertools.chain.from_iterable(under_way.nonfinite)})
            del self._under_way[task.job.number]
            self.busy.add(-1)
            problem = header.problem(under_way.outcome, self.names, self.unused)
            error = RuntimeError(problem) if problem else None
            if not self._under_way and error is None:
                self.transfers.settled()
            under_way.finish(Result(nonfinite, under_way.unused), error)

    def failed(self, task: Task, error: BaseException) -> None:
        """End a task that an error has stopped, and its job."""
        self.transfers.tell(error, [task.transfer])  # it may be newer than the error
        under_way = self._under_way.pop(task.job.number, None)
        if under_way is not None:
            self.busy.add(-1)
            under_way.finish(None, _explained(error))


def _explained(error: BaseException) -> BaseException:
    """Return an error that says what a failed exchange means."""
    if isinstance(error, OutOfStepError):
        return error
    said = f"an exchange has failed: {type(error).__name__}: {error}"
    if isinstance(error, PeerError):
        said = (
            "an exchange has failed: another worker may have ended, or made a different call: "
            f"{error}"
        )
    explained = RuntimeError(said)
    explained.__cause__ = error
    return explained


@dataclass
class _UnderWay:
    """A job that has started, and what its transfers have found so far."""

    transfers: int  # that have not ended
    _done: Done
    nonfinite: list[Iterable[str]] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)
    outcome: Stamp = SAME

    def finish(self, result: Result | None, error: BaseException | None) -> None:
        """Call `done`. If it raises, call it with its error: somebody waits for the job."""
        try:
            self._done(result if error is None else None, error)
        except Exception as failed:
            self._done(None, error or failed)


def _release(
    pipeline: Pipeline, transfers: Transfers, members: Members, machines: Machines | None
) -> None:
    """Stop the threads of an exchange that is closed or garbage, and release its connections."""
    pipeline.close()
    members.close(transfers if transfers.out_of_step else None)
    if machines is not None:
        machines.close()

"""The compressed reduce-scatter of one FSDP2 module."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Collection, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.futures import Future

from ...exchange import sharded
from ...exchange.chunk import ExchangedChunk
from ...exchange.exchange import Exchange
from ...exchange.header import Stamp
from ...exchange.job import Request, Result
from ...exchange.plan import Chunk
from ...state import fitting
from ..gradients.scaler import ScaleWatch
from ..gradients.undo import Undo, is_nonzero
from ..state import coder_states, state_dicts
from ..state.coder_states import Tensors
from ..state.sharded import Exchanges, Shards, Unit, parameter_of
from ..state.small_residuals import Scratch, SmallResiduals, small_residuals
from ..transport import staging
from ..transport.staging import future_on, resolving


class ReduceScatter(Unit):
    """Sums the gradients of one FSDP module. Each worker gets the sums of its own shards.

    Every worker compresses its gradients of all shards, with its own error feedback if requested.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],  # the sharded ones
        shards: Shards,
        dtype: torch.dtype,  # of the gradients that FSDP will pass
        frozen: Mapping[str, torch.Tensor],  # the module's parameters that need no gradient
        exchanges: Exchanges,
        scratch: Optional[Scratch] = None,  # if given, residuals are kept in 8 bits
        grad_scaler: Optional[torch.amp.GradScaler] = None,  # gradients are unscaled meanwhile
        scale_watch: Optional[ScaleWatch] = None,  # it watches while this object exists
    ) -> None:
        self._parameters, self.shards, self._frozen = parameters, shards, frozen
        self.dtype, self._exchanges = staging.real_dtype(dtype), exchanges
        self._scratch, self._grad_scaler, self._scale_watch = scratch, grad_scaler, scale_watch
        self._residuals: List[SmallResiduals] = []
        self._steps = self._begun = 0
        self.undo = Undo(parameters, self._take_back, self._in_use)
        self._exchange: Optional[Exchange] = None
        self.chunks: List[ExchangedChunk] = []
        self._loaded: Tensors = {}
        if scratch is not None:
            scratch.reserve(chunk.size for chunk in self._planned())

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Optional[Future[torch.Tensor]]:
        """Write the sum, or average, of this worker's shards to `output_tensor`.

        Return after that, or with `async_op` at once, and then a future of it. A parameter without
        a gradient, or a sum with a NaN or an infinity, raises a RuntimeError.
        """
        workers, rank = self.shards.workers, self.shards.rank
        self._require_same_parameters()
        input_tensor = staging.as_real(input_tensor).view(-1)
        output_tensor = staging.as_real(output_tensor).view(-1)
        if input_tensor.numel() != workers * self.shards.size:
            raise RuntimeError(
                f"a parameter of {', '.join(self._parameters)} got no gradient: with "
                "compress_reduce_scatter, every parameter must get one in every step"
            )
        if not self.chunks:
            self._open(group, input_tensor)
        continues = self._begin()
        rows = staging.Staged(self.shards.split_all(input_tensor))
        shards = staging.Staged(self.shards.split(rank, output_tensor))
        loss_scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0
        steps, future = self._steps, future_on(shards.device)

        def result(found: Result) -> torch.Tensor:
            if found.nonfinite and self.shards.on_nonfinite == "raise":
                name = parameter_of(found.nonfinite[0])
                raise RuntimeError(
                    f"the gradient of parameter {name} has a NaN or an infinity in step {steps}"
                )
            shards.finish(loss_scale)
            with shards.queue():
                own = zip(self._parameters, self.shards.split(rank, output_tensor).values())
                self.undo.note_zeros({n: t for n, t in own if self.shards.params[n].draws})
            return output_tensor

        stamp = Stamp(self._begun % 2**32, self.undo.digest)
        request = Request(
            rows,
            average=_averages(op),
            divisor=loss_scale,
            stamp=lambda: stamp,
            continues=continues,
            output=shards,
        )
        self._exchange.start(request, [self._transfer], resolving(future, result, shards))
        if async_op:
            return future
        future.wait()
        return None

    def _require_same_parameters(self) -> None:
        """Raise a RuntimeError if a parameter was frozen or thawed: FSDP passes no names."""
        changed = [n for n, p in self._parameters.items() if not p.requires_grad]
        changed += [n for n, p in self._frozen.items() if p.requires_grad]
        if changed:
            raise RuntimeError(
                f"parameter {changed[0]} was frozen or unfrozen after compress_reduce_scatter: "
                "call it again, before the next step"
            )

    def _begin(self) -> Set[str]:
        """Begin a step; return the shards that continue one, which add several backward passes."""
        names = self.undo.begin()
        self.undo.exchanged(self._parameters)
        self._steps += 1
        self._begun += 1
        return {chunk.piece.tensor for chunk in self._of(names)}

    def _in_use(self, names: List[str]) -> Set[str]:
        """Return the parameters to whose gradients FSDP will add the sums, on any worker.

        A worker's own shards may be empty.
        """
        facts = [tuple(map(int, self._facts(name))) for name in names]
        every = self._exchange.gather_objects(facts, "begin a step")
        return {
            name
            for name, of_workers in zip(names, zip(*every))
            for kept, nonzero, was_nonzero in [map(max, zip(*of_workers))]
            if nonzero or (kept and not was_nonzero)
        }

    def _facts(self, name: str) -> Tuple[bool, bool, bool]:
        """Return whether a gradient has its sum, is not zero now, and was not zero before."""
        kept = self.undo.keeps(name)
        nonzero = kept and bool(is_nonzero(self._parameters[name].grad.to_local()))
        return kept, nonzero, not self.undo.was_zero(name)

    def _take_back(self, names: List[str], whole: bool) -> None:
        for chunk in self._of(names):
            chunk.coder.take_back()
        tensors = {chunk.piece.tensor for chunk in self._of(names)}
        for residuals in self._residuals:
            residuals.take_back(tensors)
        self._steps -= whole

    def _of(self, names: Collection[str]) -> Iterator[ExchangedChunk]:
        """Yield the compressed chunks of these parameters."""
        return (c for c in self._compressed() if parameter_of(c.piece.tensor) in names)

    def _compressed(self) -> List[ExchangedChunk]:
        return [chunk for chunk in self.chunks if chunk.coder is not None]

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        exchange = self._exchange = self._exchanges.of(group)
        exchange.agree(self.shards.facts(like), "reduce their gradients")
        owned = [list(self._chunks_of(owner, like)) for owner in range(exchange.workers)]
        self.chunks = [chunk for owner_chunks in owned for chunk in owner_chunks]
        with_feedback = [c for c in self._compressed() if c.coder.codec.memory]
        if self._scratch is not None:
            self._residuals = small_residuals(with_feedback, self._scratch)
        around = partial(_expanded, self._residuals)
        (self._transfer,) = exchange.transfers.of(
            tuple(self.shards.sizes),
            lambda: [sharded.ReduceScatter(owned, exchange.transfers.link(0), around)],
        )
        if self._loaded:
            self.check(self._loaded)
            self._apply()

    def _chunks_of(self, owner: int, like: torch.Tensor) -> Iterator[ExchangedChunk]:
        """Yield the chunks of an owner's shards, with this worker's coders."""
        exchange = self._exchange
        for shard in self.shards.cut(owner, like):
            exchange.streams.draw(shard.chunks)
            tensor = shard.tensor
            for chunk in shard.chunks:
                coder = None
                if chunk.params is not None:
                    begin = owner * tensor.plan.size + chunk.slices[0].begin
                    start = exchange.streams.start(chunk, exchange.rank, shard.index, begin)
                    size = chunk.size, chunk.dtype
                    coder = exchange.arrays.coder(tensor.device, chunk.params, *size, start)
                yield tensor.exchanged(chunk, owner, exchange.arrays, tensor.device, coder)

    # Residuals in 8 bits

    def _expand(self, undone: Collection[str] = ()) -> None:
        for residuals in self._residuals:
            residuals.expand(undone)

    # Checkpoints

    def saved_state(self) -> Tensors:
        if not self.chunks:
            return self._loaded
        names, _ = self.undo.waiting()
        undone = {chunk.piece.tensor for chunk in self._of(names)}
        self._expand(undone)
        return coder_states.packed(self.chunks, undone)

    def empty_state(self) -> Tensors:
        return coder_states.zeros(self._planned())

    def _planned(self) -> Iterator[Chunk]:
        """Yield the chunks of all workers' shards before the first step."""
        like = torch.empty(0, dtype=self.dtype, device="meta")
        for worker in range(self.shards.workers):
            for shard in self.shards.cut(worker, like):
                yield from shard.chunks

    def check(self, tensors: Tensors) -> None:
        """Raise ValueError if these tensors do not fit. Before the first step, any tensors fit."""
        if self.chunks:
            layout = coder_states.worker_layout(self.chunks)
            arrays = coder_states.unpacked(tensors)
            names = {key.tensor: key.tensor for key in (*layout, *arrays)}
            fitting.check_arrays(state_dicts.NOUN, arrays, layout, names, strict=True)

    def load(self, tensors: Tensors) -> None:
        self._loaded = dict(tensors)
        self.undo.clear()
        if self.chunks:
            self._apply()

    def _apply(self) -> None:
        """Give the loaded tensors to the coders."""
        self._expand()  # other modules have used the scratch memory
        coder_states.restore(self.chunks, coder_states.unpacked(self._loaded))
        for residuals in self._residuals:
            residuals.compact()
        self._loaded = {}


@contextmanager
def _expanded(several: Sequence[SmallResiduals], request: Request) -> Iterator[None]:
    """Return a context for compressing, which needs residuals in their full size."""
    for residuals in several:
        residuals.expand()
    yield
    for residuals in several:
        residuals.compact(request.continues)


def _averages(op: Any) -> bool:
    """Return whether a reduce operation divides the sum by the number of workers."""
    if op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
        return op == dist.ReduceOp.AVG
    raise ValueError(f"the reduce operation of compressed gradients must be SUM or AVG, got {op}")

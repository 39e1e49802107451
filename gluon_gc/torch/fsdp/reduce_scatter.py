"""The compressed reduce-scatter of one FSDP2 module."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Collection, Iterator, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future

from ...exchange import sharded
from ...exchange.job import Done, Request
from ...exchange.plan import Chunk
from ...state import fitting
from ..state import coder_states, state_dicts
from ..state.coder_states import Tensors
from ..state.sharded import CollectiveUnit, Exchanges
from ..state.small_residuals import Scratch, SmallResiduals, small_residuals
from ..transport import staging
from .gradients import Facts, GradientSettings, GradientUnit
from .parts import Part


class ReduceScatter(GradientUnit, CollectiveUnit):
    """Sums the gradients of one FSDP module. Each worker gets the sums of its own shards.

    Every worker compresses its gradients of all shards, with its own error feedback if requested.
    """

    def __init__(
        self,
        part: Part,
        settings: GradientSettings,
        exchanges: Exchanges,
        scratch: Scratch | None = None,  # if given, residuals are kept in 8 bits
    ) -> None:
        super().__init__(part, settings)
        self._exchanges, self._scratch = exchanges, scratch
        self._residuals: list[SmallResiduals] = []
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
    ) -> Future[torch.Tensor] | None:
        """Write the sum, or average, of this worker's shards to `output_tensor`.

        Return after that, or with `async_op` at once, and then a future of it. A parameter without
        a gradient, or a sum with a NaN or an infinity, raises a RuntimeError.
        """
        values = staging.as_real(input_tensor).view(-1)
        output = staging.as_real(output_tensor).view(-1)
        self._require_gradients(values.numel(), self.shards.workers * self.shards.size)
        if not self.chunks:
            self._open(group, values)
        rows = staging.Staged(self.shards.split_all(values))
        shards = staging.Staged(self.shards.split(self.shards.rank, output))
        future = self._start(rows, shards, self._own(output), _averages(op))
        if async_op:
            return future
        future.wait()
        return None

    def _send(self, request: Request, done: Done) -> None:
        self.exchange.start(request, [self._transfer], done)

    def _in_use(self, names: list[str]) -> set[str]:
        if self._part.has_partial_sums:  # to which FSDP will add these sums
            return set(names)
        return super()._in_use(names)

    def _of_all(self, facts: list[Facts]) -> list[list[Facts]]:
        return self.exchange.gather_objects(facts, "begin a step")  # own shards may be empty

    def _take_back(self, names: list[str], whole: bool) -> None:
        super()._take_back(names, whole)
        tensors = {chunk.piece.tensor for chunk in self._of(names)}
        for residuals in self._residuals:
            residuals.take_back(tensors)

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        exchange = self.exchange = self._exchanges.of(group)
        exchange.agree(self.shards.facts(like), "reduce their gradients")
        owned = [
            [*chain(*self.shards.chunks(owner, like, exchange, draws=True).values())]
            for owner in range(exchange.workers)
        ]
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

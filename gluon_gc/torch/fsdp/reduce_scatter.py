"""ReduceScatter: the compressed reduce-scatter of one FSDP2 module."""

from __future__ import annotations

from typing import Any, Collection, Iterator, List, Mapping, Optional, Set, Tuple

import numpy as np
import torch
import torch.distributed as dist

from ..checkpoint import fitting
from ..plan import Chunk
from . import coder_states, groups, header, staging, state_dicts
from .coder import Coders
from .coder_states import Tensors
from .coding import Buffers, codings
from .collectives import ToOwners
from .exchanged_chunk import PLAIN, SUMMED, ExchangedChunk
from .gradients.scaler import ScaleWatch
from .gradients.undo import Undo, is_nonzero
from .header import Stamp
from .job import Job
from .sharded_compression import Unit
from .shards import Shards
from .small_residuals import Scratch, SmallResiduals, small_residuals


class ReduceScatter(Unit):
    """Sums the gradients of one FSDP module. Each worker gets the sums of its own shards.

    Every worker compresses its gradients of all shards, with its own error feedback if requested.
    The owner of a shard adds up the payloads. The sums are not compressed again.

    Parameters
    ----------
    parameters : mapping of str to Tensor
        The sharded parameters, by name.
    shards : Shards
        If its `on_nonfinite` is "raise", a NaN or an infinity is an error.
    dtype : torch.dtype
        The dtype of the gradients that FSDP will pass, for `empty_state`.
    frozen : mapping of str to Tensor
        The module's parameters that need no gradient, by name.
    scratch : Scratch, optional
        If given, residuals are kept in 8 bits.
    grad_scaler : GradScaler, optional
        The scaler of the loss. Gradients are unscaled while they are compressed.
    scale_watch : ScaleWatch, optional
        It watches unknown scalers while this object exists.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        shards: Shards,
        dtype: torch.dtype,
        frozen: Mapping[str, torch.Tensor],
        scratch: Optional[Scratch] = None,
        grad_scaler: Optional[torch.amp.GradScaler] = None,
        scale_watch: Optional[ScaleWatch] = None,
    ) -> None:
        self._frozen = frozen
        self._parameters, self.shards, self._dtype = parameters, shards, dtype
        self._scratch, self._grad_scaler, self._scale_watch = scratch, grad_scaler, scale_watch
        self._residuals: List[SmallResiduals] = []
        self._steps = self._begun = 0
        self.undo = Undo(parameters, self._take_back, self._in_use)
        self._group: Optional[dist.ProcessGroup] = None
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
    ) -> None:
        """Write the sum, or average, of this worker's shards to `output_tensor`, and wait for it.

        Raises
        ------
        RuntimeError
            A parameter has no gradient, or a sum has a NaN or an infinity.
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
        self._expand()
        continues = self._begin()
        rows = staging.Staged(self.shards.split_all(input_tensor))
        shards = staging.Staged(self.shards.split(rank, output_tensor))
        loss_scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0
        scale = _scale(op, workers) / loss_scale
        self._run(Job(rows, scale, {}, continues=continues), Job(shards, 1.0, {}))
        shards.finish(loss_scale)
        with shards.queue():
            own = zip(self._parameters, self.shards.split(rank, output_tensor).values())
            self.undo.note_zeros({n: t for n, t in own if self.shards.params[n].draws})

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
        facts = [self._facts(name) for name in names]
        of_any = torch.tensor(facts, dtype=torch.uint8, device="cpu")
        dist.all_reduce(of_any, dist.ReduceOp.MAX, self._group)
        return {
            name
            for name, (kept, nonzero, was_nonzero) in zip(names, of_any.tolist())
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
        return (c for c in self._compressed() if c.piece.tensor.rpartition("/")[0] in names)

    # Checkpoints

    def carried(self) -> Tensors:
        """Return this worker's residuals and random streams; nothing before the first step."""
        if not self.chunks:
            return self._loaded
        names, _ = self.undo.waiting()
        undone = {chunk.piece.tensor for chunk in self._of(names)}
        self._expand(undone)
        return coder_states.packed(self.chunks, undone)

    def empty_state(self) -> Tensors:
        """Return zeros in the shapes and dtypes of `carried`."""
        return coder_states.zeros(self._planned())

    def _planned(self) -> Iterator[Chunk]:
        """Yield the chunks of all workers' shards before the first step."""
        like = torch.empty(0, dtype=self._dtype, device="meta")
        for worker in range(self.shards.workers):
            for shard in self.shards.cut(worker, like):
                yield from shard.chunks

    def check(self, tensors: Tensors) -> None:
        """Raise ValueError if these tensors do not fit. Before the first step, any tensors fit."""
        if self.chunks:
            layout = coder_states.worker_layout(self.chunks)
            arrays = coder_states.unpacked(tensors)
            names = {place.tensor: place.tensor for place in (*layout, *arrays)}
            fitting.check_arrays(state_dicts.NOUN, arrays, layout, names, strict=True)

    def load(self, tensors: Tensors) -> None:
        """Continue from the result of `carried`."""
        self._loaded = dict(tensors)
        self.undo.clear()
        if self.chunks:
            self._apply()

    def _apply(self) -> None:
        """Give the loaded tensors to the coders."""
        self._expand()  # other modules have used the scratch memory
        coder_states.restore(self.chunks, coder_states.unpacked(self._loaded))
        self._compact()
        self._loaded = {}

    # Residuals in 8 bits

    def _expand(self, undone: Collection[str] = ()) -> None:
        for residuals in self._residuals:
            residuals.expand(undone)

    def _compact(self, continues: Collection[str] = ()) -> None:
        for residuals in self._residuals:
            residuals.compact(continues)

    def _compressed(self) -> List[ExchangedChunk]:
        return [chunk for chunk in self.chunks if chunk.coder is not None]

    def _run(self, rows: Job, shards: Job) -> None:
        for coding in self._codings:
            coding.encode(rows)
        self._compact(rows.continues)
        for own_header in self._own_headers:
            header.write(own_header, Stamp(self._begun % 2**32, self.undo.digest), [])
        self._to_owners.start()
        self._to_owners.wait()
        self._require_same_step()
        nonfinite: List[str] = []
        for coding in self._codings:
            coding.answer(rows)
            nonfinite += coding.deliver(shards)
        self._to_owners.expect()
        if nonfinite and self.shards.on_nonfinite == "raise":
            name = nonfinite[0].rpartition("/")[0]
            raise RuntimeError(
                f"the gradient of parameter {name} has a NaN or an infinity in step {self._steps}"
            )

    def _require_same_step(self) -> None:
        """Raise a RuntimeError unless the gradients of all workers are of the same step."""
        outcome, _ = header.read(self._headers, dist.get_process_group_ranks(self._group))
        if outcome != header.SAME:
            raise RuntimeError(header.problem(outcome))

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        ranks, rank = dist.get_process_group_ranks(group), dist.get_rank(group)
        group = self._group = groups.new_group(ranks)
        self.shards.agree(group, like, "reduce their gradients")
        coders = Coders(group)
        owned = [list(self._chunks_of(worker, rank, coders, like)) for worker in range(len(ranks))]
        self.chunks = [chunk for owner_chunks in owned for chunk in owner_chunks]
        with_feedback = [c for c in self._compressed() if c.coder.codec.memory]
        if self._scratch is not None:
            self._residuals = small_residuals(with_feedback, self._scratch)
        headed = [(header.wire_size(0), *(c.wire_size for c in chunks)) for chunks in owned]
        self._to_owners = ToOwners(group, 0, headed)
        self._headers, *rows = self._to_owners.rows
        received = dict(zip(owned[rank], rows))
        sums = {c: rows[0].copy() for c, rows in received.items() if c.kind in (PLAIN, SUMMED)}
        answers = {c: sums[c][None] if c in sums else rows for c, rows in received.items()}
        rooms, sent = iter(self._to_owners.rooms), {}
        self._own_headers: List[np.ndarray] = []
        for chunks in owned:
            self._own_headers.append(next(rooms))
            sent.update(zip(chunks, rooms))
        buffers = Buffers(sent, {c: received[c] for c in sums}, sums, answers)
        self._codings = codings(self.chunks, buffers)
        if self._loaded:
            self.check(self._loaded)
            self._apply()

    def _chunks_of(
        self, owner: int, rank: int, coders: Coders, like: torch.Tensor
    ) -> Iterator[ExchangedChunk]:
        """Yield the chunks of an owner's shards, with this worker's coders."""
        for shard in self.shards.cut(owner, like):
            coders.draw(shard.chunks)
            tensor = shard.tensor
            for chunk in shard.chunks:
                coder = None
                if chunk.params is not None:
                    begin = owner * tensor.plan.size + chunk.slices[0].begin
                    coder = coders.of_worker(chunk, rank, shard.index, begin, tensor.device)
                yield shard.exchanged(chunk, owner, coder)


def _scale(op: Any, workers: int) -> float:
    """Return the factor by which a reduce operation multiplies a sum."""
    if op == dist.ReduceOp.AVG:
        return 1.0 / workers
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise ValueError(f"the reduce operation of compressed gradients must be SUM or AVG, got {op}")

"""The compressed reduce-scatter of one module of fully_shard (FSDP2)."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import env, plan
from ..checkpoint import fitting
from ..checkpoint.cutting import Saved
from ..compression import CompressionParams
from ..plan import Tensor
from . import groups, saving, staging
from .channel import PLAIN, SUMMED, Channel
from .coder import Coder, Seeds
from .coding import Places, codings
from .collectives import ToOwners
from .job import Job
from .left_out import LeftOut


class ReduceScatter:
    """Sums the gradients of one FSDP module, of which each worker gets its shard.

    Every worker compresses what it has of each shard, with error feedback of its own if asked to;
    the shard's owner adds up the payloads. Nothing is compressed twice.

    Parameters
    ----------
    parameters : mapping of str to Tensor
        The sharded parameters, by their names.
    sizes : sequence of int
        Elements of a shard of each.
    params : mapping
        How each is compressed.
    checked : bool
        Whether what is not finite is an error.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        sizes: Sequence[int],
        params: Mapping[str, CompressionParams],
        checked: bool,
    ) -> None:
        self._parameters, self._names, self._params = parameters, list(parameters), params
        self._sizes = [  # where a complex element is two
            size * (2 if parameter.is_complex() else 1)
            for size, parameter in zip(sizes, parameters.values())
        ]
        self._checked, self._steps = checked, 0
        self._left_out = LeftOut(parameters.values(), self._take_back)
        self.channels: List[Channel] = []
        self._loaded: saving.Tensors = {}

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for gradients."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write this worker's shards of the sum, or average, to `output_tensor`; waits for it.

        Raises
        ------
        RuntimeError
            A parameter got no gradient; or what came is not finite.
        """
        workers, rank = dist.get_world_size(group), dist.get_rank(group)
        input_tensor = staging.as_real(input_tensor).view(-1)
        output_tensor = staging.as_real(output_tensor).view(-1)
        if input_tensor.numel() != workers * sum(self._sizes):
            raise RuntimeError(
                f"a parameter of {', '.join(self._names)} got no gradient: what is compressed with "
                "fully_shard must take part in every step"
            )
        if not self.channels:
            self._open(group, input_tensor)
        self._begin()
        rows = staging.Staged(
            {
                _key(name, worker): shard
                for worker, row in enumerate(input_tensor.view(workers, -1))
                for name, shard in zip(self._names, row.split(self._sizes))
            }
        )
        mine = [_key(name, rank) for name in self._names]
        shards = staging.Staged(dict(zip(mine, output_tensor.split(self._sizes))))
        self._run(Job(rows, _scale(op, workers), {}), Job(shards, 1.0, {}))
        shards.finish(1.0)

    def _begin(self) -> None:
        """Begin a step, or go on with one whose gradients are added up over several backwards."""
        adds = any(_has_gradient(parameter) for parameter in self._parameters.values())
        self._left_out.begin(allowed=adds)
        if self._left_out.keeps and not adds:
            for _, _, coder in self._coders():
                coder.keep()
        self._left_out.exchange(self._names)
        self._steps += 1

    def _take_back(self, names: Sequence[str]) -> None:
        for _, _, coder in self._coders():
            coder.take_back()
        self._steps -= 1

    # Checkpoints

    def describe(self) -> List[Dict[str, Any]]:
        """What must fit the one that goes on from it, of each parameter."""
        return [
            {
                "name": name,
                "shard_size": size,
                "compression": fitting.as_read(self._params[name].identity()),
            }
            for name, size in zip(self._names, self._sizes)
        ]

    def carried(self) -> saving.Tensors:
        """What this worker carries over."""
        return saving.packed(self._coders()) if self.channels else self._loaded

    def check(self, tensors: saving.Tensors) -> None:
        """ValueError unless it has what `carried` returned, as far as is known before a step."""
        if self.channels:
            layout = saving.worker_layout(self.channels)
            arrays = saving.unpacked(self._own(tensors))
            names = {place.tensor: place.tensor for place in (*layout, *arrays)}
            fitting.check_arrays(saving.SAYS, arrays, layout, names, strict=True)

    def load(self, tensors: saving.Tensors) -> None:
        """Go on from what `carried` returned, perhaps among others; once the first step begins."""
        self._loaded = self._own(tensors)
        self._left_out.loaded()
        if self.channels:
            self._apply()

    def _apply(self) -> None:
        """Give the coders what was loaded."""
        saved = Saved(saving.unpacked(self._loaded))
        for node, channel, coder in self._coders():
            coder.load_state(saving.cut(node, channel, coder, saved))
        self._loaded = {}

    def _own(self, tensors: saving.Tensors) -> saving.Tensors:
        """What is of these parameters."""
        of_shards = tensors.items()
        return {key: of for key, of in of_shards if key.rpartition("/")[0] in self._names}

    def _coders(self) -> Iterator[Tuple[str, Channel, Coder]]:
        for channel in self.channels:
            if channel.coder is not None:
                yield "worker", channel, channel.coder

    def _run(self, rows: Job, shards: Job) -> None:
        for coding in self._codings:
            coding.encode(rows)
        self._to_owners.start()
        self._to_owners.wait()
        nonfinite: List[str] = []
        for coding in self._codings:
            coding.answer()
            nonfinite += coding.deliver(shards)
        self._to_owners.expect()
        if nonfinite and self._checked:
            name = nonfinite[0].rpartition("/")[0]
            raise RuntimeError(
                f"the gradient of parameter {name} has a NaN or an infinity in step {self._steps}"
            )

    def _open(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        """Make ready for a group of workers, all of whom come here."""
        workers, rank = dist.get_world_size(group), dist.get_rank(group)
        ranks = dist.get_process_group_ranks(group)
        group = groups.new_group(ranks)
        seeds = Seeds(group)
        most, least = env.get("BYTEPS_PARTITION_BYTES"), env.get("BYTEPS_MIN_COMPRESS_BYTES")
        dtype, device = like.dtype, like.device
        kind, on_nonfinite = staging.planned_dtype(dtype), "raise" if self._checked else "propagate"
        owned: List[List[Channel]] = []
        for worker in range(workers):
            owned.append([])
            for index, (name, size) in enumerate(zip(self._names, self._sizes)):
                params = self._params[name]
                tensor = Tensor(_key(name, worker), size, kind, params, index, name, on_nonfinite)
                wire = staging.wire_of(dtype, params.fp16)
                chunks = plan.cut([tensor], most, least)
                seeds.draw(chunks)
                for chunk in chunks:
                    begin = worker * size + chunk.slices[0].begin
                    coder = None
                    if chunk.params is not None:
                        coder = seeds.coder(chunk, chunk.params, rank, index, begin, device)
                    working = plan.working_dtype(kind)
                    how = (chunk, worker, wire, working, device, tensor.checked, coder)
                    owned[-1].append(Channel(*how))
        self.channels = [channel for of_owner in owned for channel in of_owner]
        parts = [[channel.part for channel in of_owner] for of_owner in owned]
        self._to_owners = ToOwners(group, 0, parts)
        came = dict(zip(owned[rank], self._to_owners.rows))
        sums = {c: rows[0].copy() for c, rows in came.items() if c.kind in (PLAIN, SUMMED)}
        answers = {c: sums[c][None] if c in sums else rows for c, rows in came.items()}
        sent = dict(zip(self.channels, self._to_owners.rooms))
        places = Places(sent, {c: came[c] for c in sums}, sums, answers)
        self._codings = codings(self.channels, places)
        if self._loaded:
            self.check(self._loaded)
            self._apply()


def _key(name: str, worker: int) -> str:
    """What the shard of a parameter is called that is a worker's."""
    return f"{name}/{worker}"


def _has_gradient(sharded: torch.Tensor) -> bool:
    """Whether a sharded parameter has a gradient that is not all zeros."""
    return sharded.grad is not None and bool(sharded.grad.to_local().any())


def _scale(op: Any, workers: int) -> float:
    """What a reduce operation multiplies a sum by."""
    if op == dist.ReduceOp.AVG:
        return 1.0 / workers
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise ValueError(f"gradients are summed or averaged where they are compressed, got {op}")

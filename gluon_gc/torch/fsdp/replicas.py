"""The compressed all-reduce of one FSDP2 module's gradients between the replicas of an HSDP mesh.

Inside a replica, fully_shard reduce-scatters the gradients. Then each worker exchanges the sums of
its own shards with the workers that have the same shards in the other replicas.
"""

from __future__ import annotations

import zlib
from typing import Any, Dict, List, Mapping, Optional

import torch
import torch.distributed as dist

from ... import env
from ...exchange import plan
from ...exchange.exchange import DeclaredTensor, Lane
from ...exchange.job import Announced, Done, Request
from ..state.replicated import OWNERS, RESIDUAL, ReplicatedUnit, ShardState, kinds_of
from ..state.sharded import Exchanges
from ..transport import staging
from ..transport.staging import declared, real_numel
from .gradients import GradientSettings, GradientUnit
from .parts import Part


class Lanes(Exchanges):
    """The lanes of the exchanges, one for each group of workers with the same shards."""

    def __init__(self, entropy: bytes) -> None:
        super().__init__(entropy)
        self._lanes: Dict[Any, Lane] = {}

    def lane(self, group: dist.ProcessGroup) -> Lane:
        """Return the lane of a group's workers. All of them call this together."""
        exchange = self.of(group)
        if exchange not in self._lanes:
            self._lanes[exchange] = exchange.lane()
        return self._lanes[exchange]

    def restart(self, entropy: bytes) -> None:
        """Forget the lanes, and with them all residuals. New lanes start from these bytes."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self.entropy = entropy


class AcrossReplicas(GradientUnit, ReplicatedUnit):
    """Averages the gradients of one FSDP module over the replicas, in place.

    fully_shard calls it instead of its own all-reduce. `indices` has the parameters' positions in
    the model.
    """

    def __init__(
        self, part: Part, settings: GradientSettings, lanes: Lanes, indices: Mapping[str, int]
    ) -> None:
        super().__init__(part, settings)
        self.group = part.mesh_info.replicate_process_group
        self._lanes, self._indices = lanes, indices
        self._lane: Optional[Lane] = None
        # Without padding: the residuals of a checkpoint must not depend on it.
        self._sizes = {name: real_numel(p.to_local()) for name, p in self.parameters.items()}
        self._loaded: Dict[str, ShardState] = {}

    def elements(self) -> Dict[str, int]:
        return self._sizes

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Replace this worker's gradients by the averages over all replicas.

        They are sums if the gradient divide factor of fully_shard is set: it has been applied.
        """
        output = staging.as_real(reduce_output).view(-1)
        self._require_gradients(output.numel(), self.shards.size)
        own = {name: values[: self._sizes[name]] for name, values in self._own(output).items()}
        keys = self.shards.keys(self.shards.rank)
        values = staging.Staged({key: t for key, t in zip(keys, own.values()) if t.numel()})
        if not values.names:
            return
        if self._lane is None:
            self._open(output)
        self._start(values, values, own, self._part.divides).wait()

    def _announced(self) -> Announced:
        facts = {"step of gradients": self._begun, "parameters": list(self.parameters)}
        checksum = zlib.crc32(repr(facts).encode())
        return Announced(checksum, lambda: [("", facts)], "reduce their gradients")

    def _send(self, request: Request, done: Done) -> None:
        self._lane.start(request, done)

    def _open(self, like: torch.Tensor) -> None:
        """Prepare the exchange. All workers of the group call this."""
        lane = self._lanes.lane(self.group)
        self._lane, self.exchange = lane, lane.exchange
        before = len(lane.chunks)
        lane.declare(list(self._declared(like).values()))
        self.chunks = lane.chunks[before:]
        for name, state in self._loaded.items():
            self._restore(name, state)
        self._loaded = {}

    def _declared(self, like: torch.Tensor) -> Dict[str, DeclaredTensor]:
        """Return this worker's shards by parameter, with the dtype and the device of a tensor."""
        shards, indices, sizes = self.shards, self._indices, self._sizes
        return {
            name: declared(
                key,
                like,
                shards.params[name],
                indices[name],
                sizes[name],
                name,
                shards.on_nonfinite,
                shards.rank * shards.sizes[name],
            )
            for name, key in zip(self.parameters, shards.keys(shards.rank))
            if sizes[name]
        }

    # Checkpoints

    def uncompressed(self) -> List[str]:
        like = torch.empty(0, dtype=self.dtype, device="meta")
        least = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        tensors = self._declared(like).items()
        return [name for name, t in tensors if not plan.travels_compressed(t.plan, least)]

    def states(self) -> Dict[str, ShardState]:
        if self._lane is None and self._loaded:
            if not dist.get_rank(self.group):
                return self._loaded
            return {name: state.without_owners() for name, state in self._loaded.items()}
        waiting, _ = self.undo.waiting()
        return {name: self._state(name, name in waiting) for name in self.parameters}

    def _state(self, name: str, undone: bool) -> ShardState:
        """Return the state of a parameter's coders. Chunks without a coder have zeros."""
        dtype, calls = staging.working_dtype(self.dtype), 0
        residuals = {
            kind: torch.zeros(self._sizes[name], dtype=dtype, device="cpu")
            for kind in kinds_of(self.shards.params[name])
        }
        for chunk in self._of([name]):
            begin, end = chunk.piece.begin, chunk.piece.end
            calls = chunk.coder.calls(undone)
            for kind, coder in ((RESIDUAL, chunk.coder), (OWNERS, chunk.aggregator)):
                if kind in residuals and coder is not None:
                    values = coder.state(undone)["residual"]
                    residuals[kind][begin:end] = torch.from_numpy(values)
        return ShardState(calls, residuals)

    def load(self, states: Mapping[str, ShardState]) -> None:
        self.undo.clear()
        self._lane, self.chunks, self._loaded = None, [], dict(states)

    def _restore(self, name: str, state: ShardState) -> None:
        """Let the new coders of a parameter continue from a state."""
        for chunk in self._of([name]):
            for kind, coder in ((RESIDUAL, chunk.coder), (OWNERS, chunk.aggregator)):
                if coder is not None:
                    if kind in state.residuals:
                        values = state.residuals[kind][chunk.piece.begin : chunk.piece.end]
                        coder.load_state({**coder.state(), "residual": values.numpy()})
                    coder.skip(state.calls)

"""The compressed all-reduce of one FSDP2 module's gradients between the replicas of an HSDP mesh.

Inside a replica, fully_shard reduce-scatters the gradients. Then each worker exchanges the sums of
its own shards with the workers that have the same shards in the other replicas.

A checkpoint fits any mesh:

    {"format": 1, "replicas": 2, "entropy": "...", "parameters": {NAME: {...}, ...}}

The residuals of a parameter are one DTensor, whose first dimension is that of the replicas. Its
other dimensions are those of the parameter, and sharded like it. So torch.distributed.checkpoint
can load it on a mesh with other shards.

    residual    of each replica
    owners      of the replicas' sum: each element has its owner's residual in the owner's replica,
                and zeros in the others
"""

from __future__ import annotations

import zlib
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Mapping,
    NamedTuple,
    Sequence,
    TypeVar,
)

import torch
import torch.distributed as dist

from ... import env
from ...compression import CompressionParams
from ...exchange import plan
from ...exchange.exchange import DeclaredTensor, Lane
from ...exchange.job import Announced, Done, Request
from ...options import is_whole
from ...state import fitting
from ..state import state_dicts
from ..state.sharded import Exchanges, ModelCompression
from ..transport import staging
from ..transport.gathering import gather
from ..transport.staging import as_real, declared, real_numel, working_dtype
from .gradients import GradientSettings, GradientUnit
from .parts import Part

if TYPE_CHECKING:  # importing DTensor takes long
    from torch.distributed.tensor import DTensor

Value = TypeVar("Value")
RESIDUAL, OWNERS = "residual", "owners"


def kinds_of(params: CompressionParams) -> tuple[str, ...]:
    """Return which residuals there are with this compression."""
    kinds = [RESIDUAL] if params.keeps_state else []
    if params.ef and params.exchange == "two_way" and not params.compressor.traits.summable:
        kinds.append(OWNERS)
    return tuple(kinds)


class ShardState(NamedTuple):
    """The state of this worker's shard of a parameter."""

    calls: int  # of the compressor, if it draws random numbers
    residuals: dict[str, torch.Tensor]
    """By kind: float32 or float64, real, in host memory, shape (elements,)."""

    def without_owners(self) -> ShardState:
        """Return a state for a checkpoint in which another replica has all residuals of owners."""
        zeros = {kind: t.new_zeros(t.shape) for kind, t in self.residuals.items() if kind == OWNERS}
        return ShardState(self.calls, {**self.residuals, **zeros})


class Lanes(Exchanges):
    """The lanes of the exchanges, one for each group of workers with the same shards."""

    def __init__(self, entropy: bytes) -> None:
        super().__init__(entropy)
        self._lanes: dict[Any, Lane] = {}

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


class AcrossReplicas(GradientUnit):
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
        self._lane: Lane | None = None
        # Without padding: the residuals of a checkpoint must not depend on it.
        self._sizes = {name: real_numel(p.to_local()) for name, p in self.parameters.items()}
        self._loaded: dict[str, ShardState] = {}

    def elements(self) -> dict[str, int]:
        return self._sizes

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Replace this worker's gradients by the averages over all replicas.

        They are sums if the gradient divide factor of fully_shard is set: it has been applied.
        """
        output = as_real(reduce_output).view(-1)
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

    def _declared(self, like: torch.Tensor) -> dict[str, DeclaredTensor]:
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

    def uncompressed(self) -> list[str]:
        """Return the parameters whose shard on this worker is too small to be compressed."""
        like = torch.empty(0, dtype=self.dtype, device="meta")
        least = env.get("BYTEPS_MIN_COMPRESS_BYTES")
        tensors = self._declared(like).items()
        return [name for name, t in tensors if not plan.travels_compressed(t.plan, least)]

    def states(self) -> dict[str, ShardState]:
        """Return the state of each parameter, without exchanges that no optimizer has applied."""
        if self._lane is None and self._loaded:
            if not dist.get_rank(self.group):
                return self._loaded
            return {name: state.without_owners() for name, state in self._loaded.items()}
        waiting, _ = self.undo.waiting()
        return {name: self._state(name, name in waiting) for name in self.parameters}

    def _state(self, name: str, undone: bool) -> ShardState:
        """Return the state of a parameter's coders. Chunks without a coder have zeros."""
        dtype, calls = working_dtype(self.dtype), 0
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
        """Continue from these states, in which OWNERS has the residuals of all owners."""
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


class ReplicatedCompression(ModelCompression):
    """The compressed exchange of gradients between the replicas of a model."""

    _units: Sequence[AcrossReplicas]

    def __init__(self, function: str, units: Sequence[AcrossReplicas], lanes: Lanes) -> None:
        super().__init__(function, units, lanes)
        self._lanes = lanes

    def state_dict(self, replicas: int | None = None) -> dict[str, Any]:
        """Return the residuals and the positions in random streams, by parameter.

        Residuals are DTensors, so this dict is for `torch.distributed.checkpoint`. Averages that no
        optimizer has applied are left out. All workers call this. No backward may be running.

        Parameters
        ----------
        replicas : int, optional
            Return tensors of zeros in the shapes of a checkpoint of this many replicas, into which
            `torch.distributed.checkpoint.load` can load it.

        Raises
        ------
        ValueError
            `replicas` is not a whole number > 0.
        """
        if replicas is not None and not (is_whole(replicas) and replicas > 0):
            raise ValueError(f"replicas must be a whole number > 0, got {replicas!r}")
        states = {name: state for unit in self._units for name, state in unit.states().items()}
        calls = self._calls_of_all({name: state.calls for name, state in states.items()})
        parameters = {}
        for unit in self._units:
            for name, described in _described(unit).items():
                layout, tensors = _Layout(unit, name), states[name].residuals.items()
                tensors = {kind: layout.dtensor(tensor, replicas) for kind, tensor in tensors}
                parameters[name] = {**described, "calls": calls[name], **tensors}
        return {
            "format": state_dicts.FORMAT,
            "replicas": replicas or self._replicas,
            "entropy": self._lanes.entropy.hex(),
            "parameters": parameters,
        }

    def _calls_of_all(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the calls for each parameter: a worker whose shard is empty has made none."""
        drawing = [
            n for unit in self._units for n in unit.parameters if unit.shards.params[n].draws
        ]
        if not drawing:
            return dict(own)

        def most(several: Sequence[list[int]]) -> list[int]:
            return list(map(max, zip(*several)))

        parameters = [p for unit in self._units for p in unit.parameters.values()]
        calls = over_mesh(parameters, [own[n] for n in drawing], "call state_dict", most)
        return {**own, **dict(zip(drawing, calls))}

    @property
    def _replicas(self) -> int:
        return dist.get_world_size(self._units[0].group)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`. All workers call this.

        If it is of another number of replicas, their residuals are summed, and each replica gets an
        equal share, with a warning.

        Raises
        ------
        ValueError
            The state_dict is of another model, mesh or compression. Nothing was changed.
        RuntimeError
            The state_dict of another worker does not fit. Nothing was changed.
        """
        state_dicts.if_all_fit(gather, lambda: self._check(state))
        state_dicts.warn_if_divided(state["replicas"], self._replicas)
        self._lanes.restart(bytes.fromhex(state["entropy"]) or self._lanes.entropy)
        for unit in self._units:
            unit.load(
                {
                    name: _Layout(unit, name).loaded(state["parameters"][name])
                    for name in unit.parameters
                }
            )

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a state_dict does not fit."""
        state_dicts.require_format(state, "replicas", self._function)
        here = {name: d for unit in self._units for name, d in _described(unit).items()}
        described = [
            [{**parameter, "name": name} for name, parameter in parameters.items()]
            for parameters in (state["parameters"], here)
        ]
        state_dicts.check_parameters(*described, strict=True)
        for unit in self._units:
            uncompressed = unit.uncompressed()
            for name in unit.parameters:
                expected = _Layout(unit, name).describe(state["replicas"])
                saved = state["parameters"][name]
                for kind in kinds_of(unit.shards.params[name]):
                    called, facts = f"{kind} of parameter '{name}'", _facts(saved.get(kind))
                    fitting.check(state_dicts.NOUN, called, facts, expected)
                    if name in uncompressed and saved[kind].to_local().any():
                        raise ValueError(
                            f"the {state_dicts.NOUN} has residuals of parameter {name}, which is "
                            "not compressed here: BYTEPS_MIN_COMPRESS_BYTES is too large"
                        )


class _Layout:
    """How the residuals of a parameter are distributed over the mesh."""

    def __init__(self, unit: AcrossReplicas, name: str) -> None:
        self._parameter, self._dtype = unit.parameters[name], working_dtype(unit.dtype)
        self._kinds, self._group = kinds_of(unit.shards.params[name]), unit.group
        self._mesh, self._replica_dim = self._parameter.device_mesh, replica_dim(unit, name)

    @property
    def _placements(self) -> list[Any]:
        from torch.distributed.tensor import Shard

        placements = [_moved(placement) for placement in self._parameter.placements]
        placements[self._replica_dim] = Shard(0)
        return placements

    def dtensor(self, values: torch.Tensor, replicas: int | None) -> DTensor:
        """Return this worker's flat values as its part of the tensor of all replicas.

        With `replicas`, return zeros for this number of replicas.
        """
        from torch.distributed.tensor import DTensor

        if self._parameter.is_complex():
            values = torch.view_as_complex(values.view(-1, 2))
        rows, here = values.view(1, *self._parameter.to_local().shape), self._here
        if replicas is not None:
            rank, most = dist.get_rank(self._group), -(-replicas // here)
            count = max(0, min(most, replicas - rank * most))  # as torch.chunk divides them
            rows = rows.new_zeros(count, *rows.shape[1:])
        shape = torch.Size([replicas or here, *self._parameter.shape])
        return DTensor.from_local(
            rows.to(self._mesh.device_type, copy=True),
            self._mesh,
            self._placements,
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )

    @property
    def _here(self) -> int:
        return dist.get_world_size(self._group)

    def describe(self, replicas: int) -> tuple[Any, ...]:
        """Return the `_facts` of a tensor that fits."""
        dtype = self._dtype.to_complex() if self._parameter.is_complex() else self._dtype
        shape = replicas, *self._parameter.shape
        return dtype, shape, self._mesh.mesh.tolist(), tuple(self._placements)

    def loaded(self, saved: Mapping[str, Any]) -> ShardState:
        """Return the state of this worker's shard. All workers with the same shard call this.

        Each element has one owner, so the owners' sum has the bits of that owner's residual.
        """
        residuals = {}
        for kind in self._kinds:
            rows = as_real(saved[kind].to_local())
            if kind == RESIDUAL and saved[kind].shape[0] == self._here:
                values = rows.clone()
            else:
                values = rows.sum(0, dtype=torch.float64)
                dist.all_reduce(values, group=self._group)
                values /= self._here if kind == RESIDUAL else 1
            residuals[kind] = values.to("cpu", self._dtype).view(-1)
        return ShardState(saved["calls"], residuals)


def over_mesh(
    parameters: Iterable[DTensor], own: Value, doing: str, choose: Callable[[list[Value]], Value]
) -> Value:
    """Return the value that is chosen from those of all workers of the parameters' mesh.

    `doing` is the common action of the workers.
    """
    mesh = max((parameter.device_mesh for parameter in parameters), key=lambda mesh: mesh.ndim)
    for dim in range(mesh.ndim):
        own = choose(gather(own, doing, mesh.get_group(dim)))
    return own


def _facts(tensor: DTensor | None) -> tuple[Any, ...] | None:
    """Return what must be as expected in a tensor of a state_dict."""
    if tensor is None:
        return None
    ranks = tensor.device_mesh.mesh.tolist()
    return tensor.dtype, tuple(tensor.shape), ranks, tuple(tensor.placements)


def replica_dim(unit: AcrossReplicas, name: str) -> int:
    """Return the dimension of a parameter's mesh whose workers have equal shards.

    Raises
    ------
    ValueError
        There is none.
    """
    parameter, ranks = unit.parameters[name], dist.get_process_group_ranks(unit.group)
    for dim, placement in enumerate(parameter.placements):
        group = parameter.device_mesh.get_group(dim)
        if placement.is_replicate() and dist.get_process_group_ranks(group) == ranks:
            return dim
    raise ValueError(
        f"the mesh of parameter {name} must have one dimension of replicas, got "
        f"{parameter.device_mesh} with {parameter.placements}"
    )


def _moved(placement: Any) -> Any:
    """Return the placement of a tensor with one more dimension, the first."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1) if placement.is_shard() else placement


def _described(unit: AcrossReplicas) -> dict[str, dict[str, Any]]:
    """Return the values of each parameter that a state_dict and the loading state must share."""
    params: Mapping[str, CompressionParams] = unit.shards.params
    return {
        p["name"]: {key: value for key, value in p.items() if key != "name"}
        for p in state_dicts.described_parameters(unit.parameters, params)
    }

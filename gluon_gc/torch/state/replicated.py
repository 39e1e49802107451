"""The state of gradients that replicas of an HSDP mesh exchange, for any mesh.

    {"format": 1, "replicas": 2, "entropy": "...", "parameters": {NAME: {...}, ...}}

The residuals of a parameter are one DTensor, whose first dimension is that of the replicas. Its
other dimensions are those of the parameter, and sharded like it. So torch.distributed.checkpoint
can load it on a mesh with other shards.

    residual    of each replica
    owners      of the replicas' sum: each element has its owner's residual in the owner's replica,
                and zeros in the others
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import torch
import torch.distributed as dist

from ...compression import CompressionParams
from ...options import is_whole
from ...state import fitting
from ..transport.gathering import gather
from ..transport.staging import as_real, working_dtype
from . import state_dicts
from .sharded import ModelCompression, Unit

if TYPE_CHECKING:  # importing DTensor takes long
    from torch.distributed.tensor import DTensor

    from ..fsdp.replicas import Lanes

Value = TypeVar("Value")
RESIDUAL, OWNERS = "residual", "owners"


def kinds_of(params: CompressionParams) -> Tuple[str, ...]:
    """Return which residuals there are with this compression."""
    kinds = [RESIDUAL] if params.keeps_state else []
    if params.ef and params.exchange == "two_way" and not params.compressor.traits.summable:
        kinds.append(OWNERS)
    return tuple(kinds)


class ShardState(NamedTuple):
    """The state of this worker's shard of a parameter."""

    calls: int  # of the compressor, if it draws random numbers
    residuals: Dict[str, torch.Tensor]
    """By kind: float32 or float64, real, in host memory, shape (elements,)."""

    def without_owners(self) -> ShardState:
        """Return a state for a checkpoint in which another replica has all residuals of owners."""
        zeros = {kind: t.new_zeros(t.shape) for kind, t in self.residuals.items() if kind == OWNERS}
        return ShardState(self.calls, {**self.residuals, **zeros})


class ReplicatedUnit(Unit):
    """The compression of one FSDP module's gradients between replicas."""

    parameters: Mapping[str, DTensor]
    group: dist.ProcessGroup  # of the workers with the same shards

    def states(self) -> Dict[str, ShardState]:
        """Return the state of each parameter, without exchanges that no optimizer has applied."""
        raise NotImplementedError

    def load(self, states: Mapping[str, ShardState]) -> None:
        """Continue from these states, in which OWNERS has the residuals of all owners."""
        raise NotImplementedError

    def uncompressed(self) -> List[str]:
        """Return the parameters whose shard on this worker is too small to be compressed."""
        raise NotImplementedError


class ReplicatedCompression(ModelCompression):
    """The compressed exchange of gradients between the replicas of a model."""

    _units: Sequence[ReplicatedUnit]

    def __init__(self, function: str, units: Sequence[ReplicatedUnit], lanes: Lanes) -> None:
        super().__init__(function, units, lanes)
        self._lanes = lanes

    def state_dict(self, replicas: Optional[int] = None) -> Dict[str, Any]:
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

    def _calls_of_all(self, own: Mapping[str, int]) -> Dict[str, int]:
        """Return the calls for each parameter: a worker whose shard is empty has made none."""
        drawing = [
            n for unit in self._units for n in unit.parameters if unit.shards.params[n].draws
        ]
        if not drawing:
            return dict(own)

        def most(several: Sequence[List[int]]) -> List[int]:
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

    def __init__(self, unit: ReplicatedUnit, name: str) -> None:
        self._parameter, self._dtype = unit.parameters[name], working_dtype(unit.dtype)
        self._kinds, self._group = kinds_of(unit.shards.params[name]), unit.group
        self._mesh, self._replica_dim = self._parameter.device_mesh, replica_dim(unit, name)

    @property
    def _placements(self) -> List[Any]:
        from torch.distributed.tensor import Shard

        placements = [_moved(placement) for placement in self._parameter.placements]
        placements[self._replica_dim] = Shard(0)
        return placements

    def dtensor(self, values: torch.Tensor, replicas: Optional[int]) -> DTensor:
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

    def describe(self, replicas: int) -> Tuple[Any, ...]:
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
    parameters: Iterable[DTensor], own: Value, doing: str, choose: Callable[[List[Value]], Value]
) -> Value:
    """Return the value that is chosen from those of all workers of the parameters' mesh.

    `doing` is the common action of the workers.
    """
    mesh = max((parameter.device_mesh for parameter in parameters), key=lambda mesh: mesh.ndim)
    for dim in range(mesh.ndim):
        own = choose(gather(own, doing, mesh.get_group(dim)))
    return own


def _facts(tensor: Optional[DTensor]) -> Optional[Tuple[Any, ...]]:
    """Return what must be as expected in a tensor of a state_dict."""
    if tensor is None:
        return None
    ranks = tensor.device_mesh.mesh.tolist()
    return tensor.dtype, tuple(tensor.shape), ranks, tuple(tensor.placements)


def replica_dim(unit: ReplicatedUnit, name: str) -> int:
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


def _described(unit: ReplicatedUnit) -> Dict[str, Dict[str, Any]]:
    """Return the values of each parameter that a state_dict and the loading state must share."""
    params: Mapping[str, CompressionParams] = unit.shards.params
    return {
        p["name"]: {key: value for key, value in p.items() if key != "name"}
        for p in state_dicts.described_parameters(unit.parameters, params)
    }

"""The FSDP modules of a model, with their parameters and fully_shard's private records."""

from __future__ import annotations

import copy
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterator,
    Mapping,
    NamedTuple,
)

import torch
import torch.distributed as dist

from ...compression import CompressionParams
from ..state.sharded import Shards
from ..transport import groups

if TYPE_CHECKING:  # importing torch.distributed.fsdp takes half as long as importing torch
    from torch.distributed import fsdp


class Part(NamedTuple):
    """An FSDP module with some of its parameters.

    Attributes
    ----------
    module : FSDPModule
    group : FSDPParamGroup
        fully_shard's private record of the module's parameters: no public API has it.
    parameters : dict of str to DTensor
    sizes : dict of str to int
        The number of elements in a shard of each parameter, with its padding.
    """

    module: fsdp.FSDPModule
    group: Any
    parameters: dict[str, torch.Tensor]
    sizes: dict[str, int]

    @property
    def mesh_info(self) -> Any:
        """The mesh that was given to fully_shard."""
        return self.group.fsdp_params[0].mesh_info

    @property
    def workers(self) -> int:
        """The number of workers that have shards."""
        return dist.get_world_size(self.group.mesh_info.shard_process_group)

    @property
    def gradient_dtype(self) -> torch.dtype:
        """The dtype in which gradients are reduced."""
        policy = self.group.mp_policy
        return policy.reduce_dtype or self.parameter_dtype

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype in which parameters are gathered."""
        return self.group.mp_policy.param_dtype or next(iter(self.parameters.values())).dtype

    def shards(self, params: Mapping[str, CompressionParams], on_nonfinite: str) -> Shards:
        """Return the module's shards."""
        rank = dist.get_rank(self.group.mesh_info.shard_process_group)
        return Shards(self.sizes, params, on_nonfinite, self.workers, rank)

    def others(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return those of these parameters that fully_shard handles together with this part's."""
        ids = {id(p.sharded_param) for p in self.group.fsdp_params}
        return {name: p for name, p in parameters.items() if id(p) in ids}

    # Replicas

    @property
    def has_replicas(self) -> bool:
        """Whether the mesh has two dimensions, replicas and shards (HSDP)."""
        return self.group._is_hsdp

    @property
    def all_reduce_hook(self) -> Callable[[torch.Tensor], None] | None:
        return self.group._all_reduce_hook

    @property
    def has_partial_sums(self) -> bool:
        """Whether reduced gradients wait in a buffer until replicas exchange them."""
        return self.group._partial_reduce_output is not None

    @property
    def divides(self) -> bool:
        """Whether gradients are averaged. If not, fully_shard applies a factor of the user."""
        return self.group.gradient_divide_factor is None

    def replace_all_reduce(self, exchange: Callable[[torch.Tensor], None]) -> None:
        """Let fully_shard call this function instead of the all-reduce between replicas.

        Its own all-reduce stays, between this worker and itself, because it decides when gradients
        are reduced, and which memory they have until then.
        """
        self.group.mesh_info = copy.copy(self.group.mesh_info)
        self.group.mesh_info.replicate_process_group = groups.alone()
        self.group._all_reduce_hook = exchange

    def owners(self) -> Iterator[torch.nn.Module]:
        """Yield the modules that have these parameters as attributes."""
        ids = {id(parameter) for parameter in self.parameters.values()}
        for module in self.module.modules():
            if any(id(parameter) in ids for parameter in module.parameters(recurse=False)):
                yield module


def parts_of(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> Iterator[Part]:
    """Yield the FSDP modules of a model that have some of these parameters.

    Raises
    ------
    ValueError
        The model has no FSDPModule.
    """
    from torch.distributed import fsdp

    names = {parameter: name for name, parameter in parameters.items()}
    modules = [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]
    if not modules:
        raise ValueError("the model has no FSDPModule: call fully_shard first")
    for module in modules:
        for group in _groups(module):
            chosen = [p for p in group.fsdp_params if p.sharded_param in names]
            sharded = {names[p.sharded_param]: p.sharded_param for p in chosen}
            sizes = {
                name: p.padded_sharded_param_size.numel() * (2 if parameter.is_complex() else 1)
                for (name, parameter), p in zip(sharded.items(), chosen)
            }
            if sharded:
                yield Part(module, group, sharded, sizes)


def _groups(module: fsdp.FSDPModule) -> list[Any]:
    """Return fully_shard's records of a module's parameters."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [g for g in ([state._fsdp_param_group] if groups is None else groups) if g is not None]

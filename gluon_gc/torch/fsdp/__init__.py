"""Compressed reduce-scatter and all-gather for fully_shard (FSDP2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional

import torch
import torch.distributed as dist

from ...compression import CompressionParams
from ..gradients.scaler import ScaleWatch, if_enabled
from ..gradients.settings import chosen_params, named, require_optimizer
from ..state.sharded import Exchanges, ShardedCompression, Shards
from ..state.small_residuals import Scratch
from .all_gather import AllGather
from .reduce_scatter import ReduceScatter

if TYPE_CHECKING:  # importing torch.distributed.fsdp takes half as long as importing torch
    from torch.distributed import fsdp

_DENSE = ("blockwise", "bytegrad")  # the compressors whose payloads have every element
_ANY_SIZE = 64  # elements of a codec that only tells its properties

Overrides = Optional[Mapping[str, Optional[Mapping[str, Any]]]]


def compress_reduce_scatter(
    model: torch.nn.Module,
    compression_params: Optional[Mapping[str, Any]] = None,
    overrides: Overrides = None,
    on_nonfinite: str = "raise",
    residual_bits: int = 32,
    grad_scaler: Optional[torch.amp.GradScaler] = None,
) -> ShardedCompression:
    """Compress the gradients of a model to which fully_shard was applied.

    Each worker compresses its gradients of every shard, and the owner of a shard adds up the
    payloads. The all-gather of parameters does not change. On each worker, error feedback needs
    twice as much memory as all gradients of the model, or half as much with `residual_bits=8`,
    because a step may be taken back if no optimizer applies its averages.

    All workers call this with the same arguments before the first step. Every parameter must get a
    gradient in every step.

    Parameters
    ----------
    model : Module
        A module that fully_shard has processed, or with submodules that it has processed.
    compression_params : dict, optional
        See `CompressionState`. The compressor "auto", "momentum" and the error feedback "corrected"
        and "sparse" are not supported.
    overrides : mapping of str to (dict or None), optional
        See `CompressionState`.
    on_nonfinite : "raise" or "propagate"
        "raise": a NaN or an infinity in a sum is a RuntimeError on the worker that owns the shard.
    residual_bits : 32 or 8
        The bits of an element of a residual between two steps. 8: each block of 128 residuals is
        rounded. Not for onebit or dgc.
    grad_scaler : torch.amp.GradScaler, optional
        The scaler of the loss. Gradients are divided by its scale before compression, and the sums
        are multiplied by it again. Instead of on_nonfinite, the scaler then reacts to NaNs and
        infinities: it skips the optimizer's step. A disabled scaler has no effect.

    Returns
    -------
    ShardedCompression
        It has `state_dict` and `load_state_dict`.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong, or the model has no FSDPModule.
    RuntimeError
        PyTorch is older than 2.9. During training: a GradScaler that was not passed has changed its
        scale.

    References
    ----------
    Xie et al., "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024:
    residuals of 8 bits.
    """
    function = "compress_reduce_scatter"
    _require_hook("set_custom_reduce_scatter", function)
    if on_nonfinite not in ("raise", "propagate"):
        raise ValueError(f"on_nonfinite must be 'raise' or 'propagate', got {on_nonfinite!r}")
    grad_scaler = if_enabled(grad_scaler)
    if grad_scaler is not None:
        on_nonfinite = "propagate"
    parameters, frozen, _ = named(model.named_parameters())
    params = chosen_params(parameters, compression_params, overrides).params
    require_optimizer((p.require_chosen().require_no_inner() for p in params.values()), None)
    if residual_bits not in (8, 32):
        raise ValueError(f"residual_bits must be 8 or 32, got {residual_bits!r}")
    parts, scratch = list(_parts(model, parameters)), None
    if residual_bits == 8:
        _require_single_residuals(params.values())
        scratch = Scratch()
    unknown = grad_scaler is None and any(p.keeps_state for p in params.values())
    watch = ScaleWatch(parameters.values(), function) if unknown else None
    units, exchanges = [], Exchanges()
    for part in parts:
        policy, sharded = part.group.mp_policy, part.parameters
        dtype = policy.reduce_dtype or policy.param_dtype or next(iter(sharded.values())).dtype
        shards, kept_frozen = part.shards(params, on_nonfinite), part.others(frozen)
        more = exchanges, scratch, grad_scaler, watch
        units.append(ReduceScatter(sharded, shards, dtype, kept_frozen, *more))
        part.module.set_custom_reduce_scatter(units[-1])
    return ShardedCompression(function, units, exchanges)


def compress_all_gather(
    model: torch.nn.Module,
    compression_params: Optional[Mapping[str, Any]] = None,
    overrides: Overrides = None,
    differences: bool = True,
) -> ShardedCompression:
    """Compress the parameters that a model gathers to which fully_shard was applied.

    All workers compute with the decoded parameters, which are equal on all of them. The optimizer
    updates the exact parameters of each worker's shards.

    With `differences`, the compressed difference from what was gathered last travels. Each
    difference has the error of the one before, so 4 bits suffice. The first gather is not
    compressed. Later, parameters travel uncompressed after `load_state_dict`, or if they change by
    more than 1/8 of their norm: no training step would correct an error of frozen or evaluated
    parameters, and optimizers change parameters less. Smaller changes become exact with the second
    gather if the parameter has been frozen since this call.
    Shards that did not change since the last gather are not sent: the gathers of backward and of
    gradient accumulation send no parameters, nor do those of frozen parameters. Each worker keeps a
    copy of all gathered parameters: 4 bytes a parameter, or 2 bytes if they are gathered in 16
    bits. It also keeps a copy of its own shards. Payloads of b bits take b/4 bytes a parameter.

    Without `differences`, every gather sends the compressed parameters, and no copy is kept: use 8
    bits. Payloads take b/8 bytes a parameter.

    Parameters may have any shape, and any real or complex floating-point dtype, the same in a
    module. All workers call this with the same arguments before the first step.

    Parameters
    ----------
    model : Module
        A module that fully_shard has processed, or with submodules that it has processed.
    compression_params : dict, optional
        See `CompressionState`, without "ef" and "momentum". The compressor must not draw random
        numbers. Without differences it is "blockwise" or "bytegrad".
    overrides : mapping of str to (dict or None), optional
        See `CompressionState`.
    differences : bool
        Whether differences travel.

    Returns
    -------
    ShardedCompression
        It has `state_dict` and `load_state_dict`. Without differences, it has no tensors.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong, the model has no FSDPModule, its mesh has replicas (HSDP), or
        `reshard_after_forward` is a number of workers.
    RuntimeError
        PyTorch is older than 2.9. During training: a parameter has a NaN or an infinity.

    References
    ----------
    Jia et al., "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data Parallelism for
    LLM Training", NeurIPS 2024: 4-bit differences.
    Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training",
    2023: gathers of 8-bit parameters.
    """
    function = "compress_all_gather"
    _require_hook("set_custom_all_gather", function)
    trained, frozen, _ = named(model.named_parameters())
    parameters = {**trained, **frozen}
    params = chosen_params(parameters, compression_params, overrides).params
    for parameter_params in params.values():
        _require_for_parameters(parameter_params.require_chosen().require_no_inner(), differences)
    units, exchanges = [], Exchanges()
    for part in _parts(model, parameters):
        part.require_one_mesh()
        dtype = part.group.mp_policy.param_dtype or next(iter(part.parameters.values())).dtype
        shards = part.shards(params, "raise")
        kept_frozen = {name: p for name, p in part.parameters.items() if name in frozen}
        unit = AllGather(shards, dtype, differences, kept_frozen, exchanges)
        part.module.set_custom_all_gather(unit)
        for owner in part.owners():
            owner.register_load_state_dict_post_hook(lambda *_, unit=unit: unit.forget_sent())
        units.append(unit)
    return ShardedCompression(function, units, exchanges)


class _Part(NamedTuple):
    """An FSDP module with some of its parameters.

    Attributes
    ----------
    module : FSDPModule
    group : FSDPParamGroup
        fully_shard's private record of the module's parameters: no public API has it.
    parameters : dict of str to Tensor
    sizes : dict of str to int
        The number of elements in a shard of each parameter, with its padding.
    """

    module: fsdp.FSDPModule
    group: Any
    parameters: Dict[str, torch.Tensor]
    sizes: Dict[str, int]

    @property
    def workers(self) -> int:
        """The number of workers that have shards."""
        return dist.get_world_size(self.group.mesh_info.shard_process_group)

    def shards(self, params: Mapping[str, CompressionParams], on_nonfinite: str) -> Shards:
        """Return the module's shards."""
        rank = dist.get_rank(self.group.mesh_info.shard_process_group)
        return Shards(self.sizes, params, on_nonfinite, self.workers, rank)

    def others(self, parameters: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Return those of these parameters that fully_shard handles together with this part's."""
        ids = {id(p.sharded_param) for p in self.group.fsdp_params}
        return {name: p for name, p in parameters.items() if id(p) in ids}

    def owners(self) -> Iterator[torch.nn.Module]:
        """Yield the modules that have these parameters as attributes."""
        ids = {id(parameter) for parameter in self.parameters.values()}
        for module in self.module.modules():
            if any(id(parameter) in ids for parameter in module.parameters(recurse=False)):
                yield module

    def require_one_mesh(self) -> None:
        """Raise ValueError unless all workers of a mesh of one dimension gather all parameters."""
        info, after_forward = self.group.mesh_info, self.group.post_forward_mesh_info
        if info.mesh.ndim > 1:
            raise ValueError(
                "the mesh of compress_all_gather must be of one dimension, without replicas "
                f"(HSDP), got the shape {tuple(info.mesh.shape)}"
            )
        if after_forward not in (None, info):
            raise ValueError(
                "reshard_after_forward must be True or False for compress_all_gather, got a number "
                "of workers"
            )


def _parts(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> Iterator[_Part]:
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
                yield _Part(module, group, sharded, sizes)


def _groups(module: fsdp.FSDPModule) -> List[Any]:
    """Return fully_shard's records of a module's parameters."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [g for g in ([state._fsdp_param_group] if groups is None else groups) if g is not None]


def _require_hook(method: str, function: str) -> None:
    from torch.distributed import fsdp

    if not hasattr(getattr(fsdp, "FSDPModule", None), method):
        raise RuntimeError(f"{function} needs PyTorch 2.9, got {torch.__version__}")


def _require_single_residuals(several: Iterable[CompressionParams]) -> None:
    """Raise ValueError unless each residual is one array of a codec."""
    for params in several:
        if not params.keeps_state:
            continue
        accumulates = params.compressor.traits.accumulates
        if accumulates or len(params.codec(_ANY_SIZE, "float32").memory) > 1:
            raise ValueError(f"residual_bits must be 32 for {params.compressor.name}, got 8")


def _require_for_parameters(params: CompressionParams, differences: bool) -> None:
    """Raise ValueError unless parameters can be compressed like this."""
    if params.ef:
        raise ValueError(
            "compression_params['ef'] must be left out for compress_all_gather, because a "
            f"difference has the error of the last one, got {params.ef!r}"
        )
    if params.compressor is None:
        return
    name, accumulates = params.compressor.name, params.compressor.traits.accumulates
    if accumulates or params.codec(_ANY_SIZE, "float32").draws:
        raise ValueError(
            "compression_params['compressor'] must be one that draws no random numbers for "
            f"compress_all_gather, got {name!r}"
        )
    if not differences and name not in _DENSE:
        raise ValueError(
            f"compression_params['compressor'] must be one of {_DENSE} without differences, got "
            f"{name!r}"
        )

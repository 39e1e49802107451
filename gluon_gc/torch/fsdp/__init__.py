"""Compressed collectives for fully_shard (FSDP2)."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

import torch

from ...compression import CompressionParams
from ...exchange.coder import needs_entropy, new_entropy
from ..gradients.settings import chosen_params, named
from ..state.sharded import Exchanges, ShardedCompression
from ..state.small_residuals import Scratch
from .all_gather import AllGather
from .gradients import GradientSettings, gradient_settings
from .parts import Part, parts_of
from .reduce_scatter import ReduceScatter
from .replicas import AcrossReplicas, Lanes, ReplicatedCompression, over_mesh, replica_dim

_DENSE = ("blockwise", "bytegrad")  # the compressors whose payloads have every element
_ANY_SIZE = 64  # elements of a codec that only tells its properties

Overrides = Optional[Mapping[str, Optional[Mapping[str, Any]]]]


def compress_reduce_scatter(
    model: torch.nn.Module,
    compression_params: Mapping[str, Any] | None = None,
    overrides: Overrides = None,
    on_nonfinite: str = "raise",
    residual_bits: int = 32,
    grad_scaler: torch.amp.GradScaler | None = None,
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
    settings = gradient_settings(
        function, model, compression_params, overrides, on_nonfinite, grad_scaler
    )
    if residual_bits not in (8, 32):
        raise ValueError(f"residual_bits must be 8 or 32, got {residual_bits!r}")
    scratch = None
    if residual_bits == 8:
        _require_single_residuals(settings.params.values())
        scratch = Scratch()
    parts = list(parts_of(model, settings.parameters))
    units, exchanges = [], Exchanges(_common_entropy(settings))
    for part in parts:
        units.append(ReduceScatter(part, settings, exchanges, scratch))
        part.module.set_custom_reduce_scatter(units[-1])
    return ShardedCompression(function, units, exchanges)


def compress_replicas(
    model: torch.nn.Module,
    compression_params: Mapping[str, Any] | None = None,
    overrides: Overrides = None,
    on_nonfinite: str = "raise",
    grad_scaler: torch.amp.GradScaler | None = None,
) -> ReplicatedCompression:
    """Compress the gradients that replicas exchange (HSDP).

    fully_shard was applied to the model with a mesh of two dimensions: replicas, and shards. It
    reduce-scatters gradients inside each replica. Then each worker averages the gradients of its
    own shards with the workers that have the same shards in the other replicas: each worker
    compresses its gradient, and an owner compresses the sum. On each worker, error feedback needs
    twice as much memory as the gradients of its own shards, and as much again divided by the number
    of replicas, because the worker owns a part of the sums.

    All workers call this with the same arguments before the first step. Every parameter must get a
    gradient in every step. `compress_reduce_scatter` and `compress_all_gather` may compress the
    traffic inside the replicas, too.

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
        "raise": a NaN or an infinity in an average is a RuntimeError on the workers that have the
        shard.
    grad_scaler : torch.amp.GradScaler, optional
        See `compress_reduce_scatter`.

    Returns
    -------
    ReplicatedCompression
        It has `state_dict` and `load_state_dict`. Its state can be loaded on another mesh.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong, the model has no FSDPModule, its mesh has no replicas, or it has an
        all-reduce hook.
    RuntimeError
        PyTorch is older than 2.9. During training: a GradScaler that was not passed has changed its
        scale, or workers with the same shards are not in the same step.
    """
    function = "compress_replicas"
    _require_hook("set_custom_reduce_scatter", function)
    settings = gradient_settings(
        function, model, compression_params, overrides, on_nonfinite, grad_scaler
    )
    parts = list(parts_of(model, settings.parameters))
    for part in parts:
        _require_replicas(part)
    indices = {name: index for index, name in enumerate(settings.parameters)}
    lanes = Lanes(_common_entropy(settings))
    units = [AcrossReplicas(part, settings, lanes, indices) for part in parts]
    for unit in units:
        for name in unit.parameters:
            replica_dim(unit, name)
    for part, unit in zip(parts, units):
        part.replace_all_reduce(unit)
    return ReplicatedCompression(function, units, lanes)


def compress_all_gather(
    model: torch.nn.Module,
    compression_params: Mapping[str, Any] | None = None,
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
        An argument is wrong, the model has no FSDPModule, or `reshard_after_forward` is a number of
        workers.
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
    for part in parts_of(model, parameters):
        _require_one_gather(part)
        shards = part.shards(params, "raise")
        kept_frozen = {name: p for name, p in part.parameters.items() if name in frozen}
        unit = AllGather(shards, part.parameter_dtype, differences, kept_frozen, exchanges)
        part.module.set_custom_all_gather(unit)
        for owner in part.owners():
            owner.register_load_state_dict_post_hook(lambda *_, unit=unit: unit.forget_sent())
        units.append(unit)
    return ShardedCompression(function, units, exchanges)


def _require_hook(method: str, function: str) -> None:
    from torch.distributed import fsdp

    if not hasattr(getattr(fsdp, "FSDPModule", None), method):
        raise RuntimeError(f"{function} needs PyTorch 2.9, got {torch.__version__}")


def _require_replicas(part: Part) -> None:
    """Raise ValueError unless gradients can be exchanged between replicas."""
    if not part.has_replicas:
        raise ValueError(
            "the mesh of compress_replicas must have two dimensions, replicas and shards (HSDP), "
            f"got {part.mesh_info.mesh}"
        )
    hook = part.all_reduce_hook
    if hook is not None and not isinstance(hook, AcrossReplicas):
        raise ValueError(f"the model already has an all-reduce hook, {hook!r}")


def _common_entropy(settings: GradientSettings) -> bytes:
    """Return the same random bytes on all workers of a model's mesh, if a compressor needs any."""
    if not needs_entropy(settings.params.values()):
        return b""
    parameters, doing = settings.parameters.values(), f"call {settings.function}"
    return over_mesh(parameters, new_entropy(), doing, lambda several: several[0])


def _require_one_gather(part: Part) -> None:
    """Raise ValueError unless the same workers gather parameters in forward and in backward."""
    if part.group.post_forward_mesh_info not in (None, part.group.mesh_info):
        raise ValueError(
            "reshard_after_forward must be True or False for compress_all_gather, got a number of "
            "workers"
        )


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

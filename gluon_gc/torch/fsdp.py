"""Compressed reduce-scatter for fully_shard (FSDP2)."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch.distributed import fsdp

from ..checkpoint import fitting
from . import state_dicts
from .gathering import gather
from .reduce_scatter import ReduceScatter
from .settings import chosen_params, named, require_optimizer


class ShardedCompression:
    """The state that `compress_reduce_scatter` keeps from step to step, for checkpoints.

    Parameters
    ----------
    sums : sequence of ReduceScatter
    """

    def __init__(self, sums: Sequence[ReduceScatter]) -> None:
        self._sums = list(sums)

    def state_dict(self) -> Dict[str, Any]:
        """Return this worker's residuals and random streams, as plain values and tensors.

        No backward may be running.
        """
        arrays = {k: v for scatter in self._sums for k, v in scatter.carried().items()}
        return {"format": state_dicts.FORMAT, **self._described(), "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict` on this worker. All workers call this.

        Raises
        ------
        ValueError
            The state_dict is of another worker, model, compression or number of workers. Nothing
            was changed.
        RuntimeError
            The state_dict of another worker does not fit. Nothing was changed.
        """
        state_dicts.if_all_fit(gather, lambda: self._check(state))
        for scatter in self._sums:
            scatter.load(state["arrays"])

    def _check(self, state: Mapping[str, Any]) -> None:
        state_dicts.require_format(state, "shards", "compress_reduce_scatter")
        here = self._described()
        for key in ("rank", "world_size"):
            fitting.check(state_dicts.NOUN, key, state[key], here[key])
        state_dicts.check_parameters(state["shards"], here["shards"], strict=True)
        for scatter in self._sums:
            scatter.check(state["arrays"])

    def _described(self) -> Dict[str, Any]:
        """Return the values that a state_dict and the loading state must share."""
        return {
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "shards": [shard for scatter in self._sums for shard in scatter.describe()],
        }


def compress_reduce_scatter(
    model: torch.nn.Module,
    compression_params: Optional[Mapping[str, Any]] = None,
    overrides: Optional[Mapping[str, Optional[Mapping[str, Any]]]] = None,
    on_nonfinite: str = "raise",
) -> ShardedCompression:
    """Compress the gradients of a model to which fully_shard was applied.

    Each worker compresses its gradients of every shard, and the owner of a shard adds up the
    payloads. The all-gather of parameters does not change. On each worker, error feedback needs as
    much memory as all gradients of the model.

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

    Returns
    -------
    ShardedCompression
        It has `state_dict` and `load_state_dict`.

    Raises
    ------
    ValueError, TypeError, KeyError
        An argument is wrong, or the model has no FSDPModule.
    RuntimeError
        PyTorch is older than 2.9.
    """
    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter"):
        raise RuntimeError(f"compress_reduce_scatter needs PyTorch 2.9, got {torch.__version__}")
    if on_nonfinite not in ("raise", "propagate"):
        raise ValueError(f"on_nonfinite must be 'raise' or 'propagate', got {on_nonfinite!r}")
    parameters, _ = named(model.named_parameters())
    params = chosen_params(parameters, compression_params, overrides).params
    require_optimizer((p.require_chosen() for p in params.values()), None)
    names = {parameter: name for name, parameter in parameters.items()}
    modules = [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]
    if not modules:
        raise ValueError("the model has no FSDPModule: call fully_shard first")
    sums = []
    for module in modules:
        for sharded in _sharded(module):
            trained = [p for p in sharded if p.sharded_param in names]
            sizes = [p.padded_sharded_param_size.numel() for p in trained]
            module_params = {names[p.sharded_param]: p.sharded_param for p in trained}
            if module_params:
                checked = on_nonfinite == "raise"
                sums.append(ReduceScatter(module_params, sizes, params, checked))
                module.set_custom_reduce_scatter(sums[-1])
    return ShardedCompression(sums)


def _sharded(module: fsdp.FSDPModule) -> Iterator[Sequence[Any]]:
    """Yield fully_shard's private records of a module's parameters: no public API has them."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:
        if group is not None:
            yield group.fsdp_params

"""Compression for training loops that use Hugging Face's Accelerate."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from accelerate import Accelerator
from torch.optim import Optimizer

from .attached import AttachedCompression


def compress(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: Optimizer,
    compression_params: Mapping[str, Any] | None = None,
    algorithm: None | str | Mapping[str, Any] = None,
    report: Mapping[str, Any] | None = None,
    **options: Any,
) -> AttachedCompression:
    """Compress the gradients of a prepared model, or step its optimizer by an algorithm.

    `accelerator.save_state` and `load_state` then also save and load the compression's state. All
    workers call this, and they call `save_state` together.

    Parameters
    ----------
    accelerator : Accelerator
    model, optimizer
        The results of `accelerator.prepare`, with DistributedDataParallel.
    compression_params : dict, optional
        See `CompressionState`.
    algorithm : str or dict, optional
        See `DistributedOptimizer`.
    report : dict, optional
        The arguments of `bps.report`, such as ``{"every": 100, "tensorboard": "runs"}``. None: no
        report.
    **options
        overrides and on_nonfinite; see `CompressionState`.

    Returns
    -------
    AttachedCompression
        Call its `set_epoch` in each epoch if the compressor has a warm-up.

    Examples
    --------
    >>> model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    >>> compression = compress(accelerator, model, optimizer, {"compressor": "bytegrad"})
    """
    # An inner function of find_executable_batch_size may call this several times.
    registered = accelerator._custom_objects
    for earlier in [one for one in registered if isinstance(one, AttachedCompression)]:
        if earlier.is_of_optimizer(optimizer):
            earlier.close()
            registered.remove(earlier)
    attached = AttachedCompression(
        model,
        optimizer,
        compression_params,
        algorithm,
        grad_scaler=accelerator.scaler,
        gathers_everywhere=accelerator.project_configuration.save_on_each_node,
        report=report,
        **options,
    )
    accelerator.register_for_checkpointing(attached)
    return attached

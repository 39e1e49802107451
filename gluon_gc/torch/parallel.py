"""DistributedDataParallel with BytePS's arguments: PyTorch's, with our communication hook."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import torch
from torch.nn.parallel import DistributedDataParallel as _OfPyTorch

from . import gpu
from .compression import Compression, params_of
from .hook import compression_hook
from .state import CompressionState


class DistributedDataParallel(_OfPyTorch):
    """A module whose gradients are averages over all workers when backward returns.

    Every worker makes it, and calls it, in the same order. It is PyTorch's class of that name:
    `module`, `no_sync`, `state_dict` and the others are its own.

    Parameters
    ----------
    module : Module
        Its parameters become those of worker 0.
    device_ids : sequence of one int or device, optional
        The GPU that the module is on. Ignored for a module on the CPU.
    broadcast_buffers : bool
        Whether worker 0's buffers overwrite those of all others before each forward.
    compression : NoneCompressor, FP16Compressor or dict
        ``Compression.none``, ``Compression.fp16``, or compression_params as `CompressionState`
        takes them.
    **options
        Other arguments of PyTorch's class. `find_unused_parameters` is true by default; false saves
        a walk through the graph where each forward uses all parameters.

    Attributes
    ----------
    compression_state : CompressionState
        For its stats, epochs and checkpoints. It has no optimizer: for momentum, register
        `compression_hook` with a CompressionState that has one.

    References
    ----------
    byteps.torch.parallel.DistributedDataParallel (BytePS).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Optional[Sequence[Union[int, torch.device]]] = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
        **options: Any,
    ) -> None:
        params = params_of(compression)
        if all(gpu.in_host_memory(parameter.device) for parameter in module.parameters()):
            device_ids = None
        super().__init__(module, device_ids, **{"find_unused_parameters": True, **options})
        self.broadcast_buffers = broadcast_buffers  # later, so that buffers begin equal
        self.compression_state = CompressionState(
            module.named_parameters(), params, process_group=options.get("process_group")
        )
        self.register_comm_hook(self.compression_state, compression_hook)

    def synchronize(self) -> None:
        """Do nothing: gradients are averages when backward returns."""

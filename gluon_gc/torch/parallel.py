"""DistributedDataParallel with BytePS's arguments: PyTorch's class with our communication hook."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel as _TorchDDP

from .compression import Compression, params_of
from .ddp import compression_hook
from .gradients.state import CompressionState
from .transport import gpu, groups


class DistributedDataParallel(_TorchDDP):
    """A module whose gradients are averages over all workers when backward returns.

    It is a subclass of PyTorch's class of the same name, and has its methods `no_sync`,
    `state_dict` and others. All workers must create it and call it in the same order.

    Parameters
    ----------
    module : Module
        Its parameters get the values of worker 0.
    device_ids : sequence of one int or device, optional
        The GPU of the module. Ignored for a module on the CPU.
    broadcast_buffers : bool
        Whether each forward begins with a broadcast of worker 0's buffers to all workers.
    compression : NoneCompressor, FP16Compressor or dict
        ``Compression.none``, ``Compression.fp16``, or compression_params; see `CompressionState`.
    **options
        Other arguments of PyTorch's class. `find_unused_parameters` is True by default. If each
        forward uses all parameters, False avoids a traversal of the autograd graph.

    Attributes
    ----------
    compression_state : CompressionState
        The state of the compression, for statistics, epochs and checkpoints. It has no optimizer.
        For momentum, use PyTorch's class, and register `compression_hook` with a CompressionState
        that has the optimizer.

    References
    ----------
    byteps.torch.parallel.DistributedDataParallel (BytePS).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
        **options: Any,
    ) -> None:
        groups.require_init()
        params = params_of(compression)
        if all(gpu.in_host_memory(parameter.device) for parameter in module.parameters()):
            device_ids = None
        super().__init__(module, device_ids, **{"find_unused_parameters": True, **options})
        self.broadcast_buffers = broadcast_buffers  # set late, so that buffers start equal
        self.compression_state = CompressionState(
            module.named_parameters(), params, process_group=options.get("process_group")
        )
        self.register_comm_hook(self.compression_state, compression_hook)

    def synchronize(self) -> None:
        """Do nothing, because gradients are averages when backward returns."""

"""A communication hook that keeps each worker's own gradients in DistributedDataParallel (DDP).

This module must not import annotations from __future__: DDP compares the annotations of a hook with
types, not with strings.
"""

import torch
import torch.distributed as dist

from ..algorithms.state import AlgorithmState
from ..job import future_on


def local_gradients_hook(
    state: AlgorithmState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return the gradients of a bucket unchanged. DDP does not divide the result of a hook.

    If the algorithm's state is closed, raise an error, because nothing averages the parameters.
    """
    state.rounds.require_open()
    buffer = bucket.buffer()
    future = future_on(buffer.device)
    future.set_result(buffer)
    return future

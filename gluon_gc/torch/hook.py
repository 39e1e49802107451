"""The communication hook of DistributedDataParallel, which looks at its annotations as they are."""

import torch
import torch.distributed as dist

from .state import CompressionState


def compression_hook(
    state: CompressionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over all workers, compressed on the way.

    Parameters
    ----------
    state : CompressionState
        Of the parameters of the model that is wrapped.
    bucket : GradBucket

    Returns
    -------
    Future of Tensor
        The bucket's buffer.

    Examples
    --------
    >>> state = bps.CompressionState(model.named_parameters(), {"compressor": "onebit"})
    >>> ddp.register_comm_hook(state, bps.compression_hook)
    """
    buffer = bucket.buffer()
    gradients = {}
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        begin = gradient.storage_offset() - buffer.storage_offset()
        gradients[state.name_of(parameter)] = buffer[begin : begin + gradient.numel()]
    averaged = state.average(gradients, begins=bucket.index() == 0)
    return averaged.then(lambda done: (done.value(), buffer)[1])

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
    buffer, begins = bucket.buffer(), bucket.index() == 0
    if buffer.is_sparse:
        return _sparse(state, bucket, begins)
    gradients = {
        state.name_of(parameter): _real(parameter, gradient, buffer)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
    }
    absent = gradients.keys() - state.take_made(gradients)
    averaged = state.average(gradients, begins, absent)
    return averaged.then(lambda done: (done.value(), buffer)[1])


def _real(parameter: torch.Tensor, gradient: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """A gradient in a bucket's buffer: of a complex parameter, as `torch.view_as_real` has it."""
    if not parameter.is_complex():
        return gradient
    strides = [2 * stride for stride in gradient.stride()]
    return buffer.as_strided((*gradient.shape, 2), (*strides, 1), gradient.storage_offset())


def _sparse(
    state: CompressionState, bucket: dist.GradBucket, begins: bool
) -> torch.futures.Future[torch.Tensor]:
    """Average the one gradient of a bucket of a sparse one."""
    (parameter,), buffer = bucket.parameters(), bucket.buffer()
    name = state.name_of(parameter)
    own = buffer if state.take_made([name]) else None
    return state.average_sparse(name, own, begins).then(
        lambda done: buffer.detach() if done.value() is None else done.value()
    )

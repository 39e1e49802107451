"""The communication hook of DistributedDataParallel, which looks at its annotations as they are."""

import torch
import torch.distributed as dist

from . import staging
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
        state.name_of(parameter): _placed(parameter, gradient, buffer)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
    }
    absent = gradients.keys() - state.take_made(gradients)
    averaged = state.average(gradients, begins, absent)
    return averaged.then(lambda done: (done.value(), buffer)[1])


def _placed(parameter: torch.Tensor, gradient: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """A gradient as it lies in a bucket's buffer: in the parameter's memory format, and real.

    DistributedDataParallel's own view of it, `gradient`, is right about where it begins.
    """
    if parameter.is_contiguous() and not parameter.is_complex():
        return gradient
    real = staging.as_real(parameter)
    strides = real.stride() if _is_dense(real) else real.contiguous().stride()
    return buffer.as_strided(real.shape, strides, gradient.storage_offset())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory, in any order."""
    size_so_far = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != size_so_far:
            return False
        size_so_far *= size
    return True


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

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
    gradients, begin = {}, buffer.storage_offset()
    for parameter in bucket.parameters():
        gradients[state.name_of(parameter)] = _placed(parameter, buffer, begin)
        begin += staging.real_numel(parameter)
    absent = gradients.keys() - state.gradients.take_made(gradients)
    averaged = state.average(gradients, begins, absent)
    return averaged.then(lambda done: (done.value(), buffer)[1])


def _placed(parameter: torch.Tensor, buffer: torch.Tensor, begin: int) -> torch.Tensor:
    """A gradient that lies in a buffer in its parameter's memory format; a complex one is real.

    (`bucket.gradients()` has it in another format, and complex ones at wrong places.)
    """
    real = staging.as_real(parameter)
    strides = real.stride() if _is_dense(real) else real.contiguous().stride()
    return buffer.as_strided(real.shape, strides, begin)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory, in any order."""
    if tensor.is_contiguous():
        return True
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
    own = buffer if state.gradients.take_made([name]) else None
    return state.average_sparse(name, own, begins).then(
        lambda done: buffer.detach() if done.value() is None else done.value()
    )

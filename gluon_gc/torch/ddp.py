"""The communication hooks for DistributedDataParallel (DDP).

This module must not import annotations from __future__: DDP compares the annotations of a hook with
types, not with strings.
"""

import itertools
from typing import Callable, Collection, List, Mapping, Sequence

import torch
import torch.distributed as dist

from .algorithms.state import AlgorithmState
from .gradients.state import CompressionState
from .transport import staging
from .transport.staging import future_on

_Unused = torch.futures.Future[Collection[str]]
"""Its value: the names of the parameters for which no worker has a gradient."""


def compression_hook(
    state: CompressionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average the gradients of a bucket over all workers, in compressed form.

    Parameters
    ----------
    state : CompressionState
        The state for the parameters of the wrapped model.
    bucket : GradBucket

    Returns
    -------
    Future of Tensor
        Its value is the bucket's buffer, which holds the averages.

    Examples
    --------
    >>> params = {"compressor": "onebit", "scaling": True, "ef": "vanilla"}
    >>> state = bps.CompressionState(model.named_parameters(), params, optimizer)
    >>> ddp.register_comm_hook(state, bps.compression_hook)
    """
    if not _uncompiled:
        _uncompiled.append(torch.compiler.disable(_averaged))
    return _uncompiled[0](state, bucket)


_uncompiled: List[Callable[..., torch.futures.Future[torch.Tensor]]] = []
"""`_averaged` for scripts that compile a whole step: torch.compile cannot trace it.

It is made by the first call, because it imports the compiler, which takes seconds.
"""


def _averaged(
    state: CompressionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Implement `compression_hook`."""
    state.require_original()
    buffer, begins = bucket.buffer(), bucket.index() == 0
    parameters = bucket.parameters()
    if buffer.is_sparse:
        return _sparse(state, parameters[0], buffer, begins)
    gradients = _gradients(state, parameters, buffer)
    computed = _computed(state, gradients, begins)
    absent = gradients.keys() - computed
    # The buffer has averages of an earlier backward pass, if they are still in use.
    earlier = {
        name: gradients[name].clone()
        for name in absent
        if state.parameters[name].grad is not None and not state.gradients.shadows
    }

    def averages(done: _Unused) -> torch.Tensor:
        for name in earlier.keys() & done.value():
            gradients[name].copy_(earlier[name])
        return buffer

    return state.average(gradients, begins, absent).then(averages)


def _gradients(
    state: CompressionState, parameters: Sequence[torch.Tensor], buffer: torch.Tensor
) -> Mapping[str, torch.Tensor]:
    """Return the gradients of these parameters in a bucket's buffer, by name."""
    ids = tuple(map(id, parameters))
    kept = state.gradients.bucket_slices
    slices = kept.get(ids)
    if slices is None:
        names, sizes = map(state.name_of, parameters), map(staging.real_numel, parameters)
        ends = list(itertools.accumulate(sizes))
        slices = kept[ids] = dict(zip(names, map(slice, [0, *ends], ends)))
    parts = staging.Parts(buffer, slices)
    if all(map(torch.Tensor.is_contiguous, parameters)):
        return parts
    return {
        name: values if parameter.is_contiguous() else _strided_as(parameter, values)
        for parameter, (name, values) in zip(parameters, parts.items())
    }


def _computed(state: CompressionState, names: Collection[str], begins: bool) -> Collection[str]:
    """Return the names whose gradients this worker has computed.

    In DDP's Join, a worker without further batches calls the hook outside of backward, with zeros.
    """
    if begins:
        state.gradients.shadows = torch._C._current_graph_task_id() < 0
    return () if state.gradients.shadows else state.gradients.take_computed(names)


def _strided_as(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a gradient's slice of a bucket in its parameter's memory format.

    A complex gradient is viewed as real numbers. `bucket.gradients()` ignores the memory format,
    and returns complex gradients at wrong offsets.
    """
    real = staging.as_real(parameter)
    strides = real.stride() if _is_dense(real) else real.contiguous().stride()
    return values.as_strided(real.shape, strides, values.storage_offset())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill its memory without gaps, in any order."""
    size_so_far = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != size_so_far:
            return False
        size_so_far *= size
    return True


def _sparse(
    state: CompressionState, parameter: torch.Tensor, buffer: torch.Tensor, begins: bool
) -> torch.futures.Future[torch.Tensor]:
    """Average the gradient of a bucket with one sparse gradient."""
    name = state.name_of(parameter)
    own = buffer if _computed(state, [name], begins) else None
    return state.average_sparse(name, own, begins).then(
        lambda done: buffer.detach() if done.value() is None else done.value()
    )


def local_gradients_hook(
    state: AlgorithmState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return the gradients of a bucket unchanged: an algorithm steps with each worker's own.

    If the algorithm's state is closed, raise an error, because nothing averages the parameters.
    """
    state.rounds.exchange.require_open()
    buffer = bucket.buffer()
    future = future_on(buffer.device)
    future.set_result(buffer)
    return future

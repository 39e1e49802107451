"""BytePS's functions that sum or average single tensors over all workers."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from ...compression import CompressionParams, byteps
from ..compression import Compression
from .single_tensors import Handle, SingleTensors

_tensors: Optional[SingleTensors] = None


def _started() -> SingleTensors:
    """Return the threads that sum tensors. All workers make their first call at the same time."""
    global _tensors
    if _tensors is None:
        _tensors = SingleTensors()
    return _tensors


def declare(name: str, **compression: Any) -> None:
    """Set the compression of the tensor with this name. All workers call this in the same order.

    Parameters
    ----------
    name : str
    **compression
        Options of compression_params, in our spelling or in BytePS's (such as
        "byteps_compressor_type").

    Raises
    ------
    ValueError, TypeError, KeyError
        An option is wrong, or the name was declared before with other options.
    """
    params = byteps.translate(compression).parse().require_chosen().require_no_optimizer()
    _started().declare(name, params)


def declarations() -> Dict[str, CompressionParams]:
    """Return the compression of each declared tensor."""
    return {} if _tensors is None else dict(_tensors.params)


def declare_again(params: Mapping[str, CompressionParams]) -> None:
    """Declare the tensors of an earlier `declarations` call."""
    for name, tensor_params in params.items():
        _started().declare(name, tensor_params)


def forget() -> None:
    """Forget all declarations, after all calls have finished."""
    global _tensors
    if _tensors is not None:
        _tensors.close()
    _tensors = None


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Start to replace a tensor by its average, or sum, over all workers, and return at once.

    All workers call this in the same order, with tensors of the same name, shape and dtype.

    Parameters
    ----------
    tensor : Tensor
        A tensor of any dtype except bool. A sparse tensor is sent uncompressed.
    average : bool
        Whether the sum is divided by `size()`. The average of integers is rounded towards zero.
    name : str, optional
        The name that was declared. A tensor without a declared name is sent uncompressed.
    version, priority : int
        Accepted for BytePS's sake, without effect.

    Returns
    -------
    Handle
        Pass it to `poll` or `synchronize`. `synchronize` raises a RuntimeError if the workers'
        tensors differ, and an OverflowError if a sum of integers does not fit into their dtype.

    Raises
    ------
    TypeError
        The argument is not a tensor, its dtype is bool, or its layout is neither strided nor COO.
    RuntimeError
        The tensor is expanded, so that several elements share memory.
    """
    _require_numbers(tensor, name)
    _require_writable(tensor, name)
    handle = Handle(tensor, name, average)
    _started().put(handle)
    return handle


byteps_push_pull = push_pull_async_inplace
"""BytePS's name for `push_pull_async_inplace`."""


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Like `push_pull_async_inplace`, but the result is a new tensor."""
    copy = tensor.detach().clone() if isinstance(tensor, torch.Tensor) else tensor
    return push_pull_async_inplace(copy, average, name, version, priority)


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Return the average, or sum, of a tensor over all workers; see `push_pull_async_inplace`.

    Autograd supports it: the gradient of the tensor is the average, or sum, of the workers'
    gradients of the result.

    Parameters
    ----------
    compression : NoneCompressor or FP16Compressor
        A member of `Compression`, or an object with the methods `compress` and `decompress`. With
        ``Compression.fp16`` the sum is float16 too, so a sum above 65504 becomes infinite.
    """
    _require_numbers(tensor, name)
    sent, ctx = compression.compress(tensor)
    return compression.decompress(_PushPull.apply(sent, average, name), ctx)


class _PushPull(torch.autograd.Function):
    """The autograd function of push_pull."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: Optional[str]) -> torch.Tensor:
        ctx.average, ctx.name = average, f"the gradient of {name}" if name else None
        return synchronize(push_pull_async(tensor, average, name))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
        return push_pull(gradient, ctx.average, ctx.name), None, None


def _require_numbers(tensor: Any, name: Optional[str]) -> None:
    """Raise a TypeError unless the argument is a dense or COO tensor of numbers."""
    called = _called(name)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{called} must be a torch.Tensor, got {tensor!r} ({type(tensor).__name__}); "
            "torch.tensor(...) makes one from a number"
        )
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(
            f"{called} has layout {tensor.layout}, which cannot be summed: convert it, as by "
            "x.to_dense()"
        )
    if tensor.dtype == torch.bool:
        raise TypeError(
            f"{called} has dtype bool, which cannot be summed: convert it, as by x.to(torch.int)"
        )


def _require_writable(tensor: torch.Tensor, name: Optional[str]) -> None:
    """Raise a RuntimeError, like PyTorch's in-place functions, if a dense tensor is expanded."""
    if tensor.is_sparse:
        return
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        raise RuntimeError(
            f"{_called(name)} is expanded, so the sum cannot be written to it: pass x.clone()"
        )


def _called(name: Optional[str]) -> str:
    return f"tensor '{name}'" if name else "tensor"


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Replace a tensor by its average, or sum, over all workers, and return it."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


def poll(handle: Handle) -> bool:
    """Return whether the result is ready, so that `synchronize` does not block."""
    return handle.future.done()


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for the result and return it."""
    handle.future.wait()
    return handle.tensor

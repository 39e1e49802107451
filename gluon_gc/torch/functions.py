"""BytePS's functions that sum or average single tensors over all workers."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from ..compression import CompressionParams, byteps
from .compression import Compression
from .single_tensors import Handle, SingleTensors

_tensors: Optional[SingleTensors] = None


def _started() -> SingleTensors:
    """The threads that sum tensors; all workers make their first call at the same time."""
    global _tensors
    if _tensors is None:
        _tensors = SingleTensors()
    return _tensors


def declare(name: str, **compression: Any) -> None:
    """Say how a tensor is compressed when it is summed; all workers do so in the same order.

    Parameters
    ----------
    name : str
    **compression
        Keys of compression_params, in our spelling or in BytePS's ("byteps_compressor_type" and its
        like).

    Raises
    ------
    ValueError, TypeError, KeyError
        Wrong keys or values, or a name that was declared with others.
    """
    params = byteps.translate(compression).parse().require_chosen()
    _started().declare(name, params)


def declarations() -> Dict[str, CompressionParams]:
    """The compression of each declared tensor."""
    return {} if _tensors is None else dict(_tensors.params)


def declare_again(params: Mapping[str, CompressionParams]) -> None:
    """Declare the result of `declarations` again."""
    for name, of_tensor in params.items():
        _started().declare(name, of_tensor)


def forget() -> None:
    """Forget declarations, once all calls are done."""
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
    """Begin to replace a tensor by its average, or sum, over all workers; returns at once.

    All workers call this in the same order, with tensors of the same name, shape and dtype.

    Parameters
    ----------
    tensor : Tensor
        Of any dtype but bool. A sparse one travels uncompressed.
    average : bool
        Whether the sum is divided by `size()`; an average of integers is rounded towards zero.
    name : str, optional
        As it was declared.
    version, priority : int
        Accepted, without effect, as BytePS has them.

    Returns
    -------
    Handle
        For `poll` and `synchronize`. `synchronize` raises a RuntimeError if workers differ, and an
        OverflowError if a sum of integers does not fit into their dtype.

    Raises
    ------
    TypeError
        It is no tensor, or one of bool.
    """
    _require_numbers(tensor, name)
    handle = Handle(tensor, name, average)
    _started().put(handle)
    return handle


byteps_push_pull = push_pull_async_inplace
"""BytePS's name for it."""


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """As `push_pull_async_inplace`, but the result is a new tensor."""
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
    """The average, or sum, of a tensor over all workers; see `push_pull_async_inplace`.

    Gradients flow through it: that of the tensor is the average, or sum, of those of the results.

    Parameters
    ----------
    compression : NoneCompressor or FP16Compressor
        One of `Compression`, or an object with its methods `compress` and `decompress`. With
        ``Compression.fp16`` the sum is a float16, too, so that it is infinite above 65504.
    """
    _require_numbers(tensor, name)
    sent, ctx = compression.compress(tensor)
    return compression.decompress(_PushPull.apply(sent, average, name), ctx)


class _PushPull(torch.autograd.Function):
    """push_pull for autograd."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: Optional[str]) -> torch.Tensor:
        ctx.average, ctx.name = average, f"the gradient of {name}" if name else None
        return synchronize(push_pull_async(tensor, average, name))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
        return push_pull(gradient, ctx.average, ctx.name), None, None


def _require_numbers(tensor: Any, name: Optional[str]) -> None:
    """TypeError unless it is a tensor that has a sum."""
    called = f"tensor '{name}'" if name else "tensor"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{called} must be a torch.Tensor, got {tensor!r} ({type(tensor).__name__}); numbers "
            "become one by torch.tensor(...)"
        )
    if tensor.dtype == torch.bool:
        raise TypeError(f"{called} is of bool, which has no sum: convert it, as by x.to(torch.int)")


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
    """Whether a result is there, so that `synchronize` would return at once."""
    return handle.future.done()


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for a result, and return it."""
    handle.future.wait()
    return handle.tensor

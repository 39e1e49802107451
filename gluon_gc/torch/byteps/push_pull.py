"""BytePS's functions that sum or average single tensors over all workers.

The sums are made one after the other, on separate threads. A tensor with a declared name is sent
compressed. torch.distributed sums the other tensors. Before each sum, the workers compare the
tensors' names, shapes and dtypes.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from ...compression import CompressionParams, byteps
from ...exchange.job import Request, Result
from ...exchange.pipeline import Pipeline
from ...exchange.plan import Tensor
from ...kernels import integers
from ..compression import Compression
from ..transport import gathering, gpu, groups, new_exchange, staging
from ..transport.sparse import SparseRequest, start_sparse
from ..transport.staging import declared, future_on, resolving

_tensors: _Sums | None = None


def _started() -> _Sums:
    """Return the threads that sum tensors. All workers make their first call at the same time."""
    global _tensors
    if _tensors is None:
        _tensors = _Sums()
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


def declarations() -> dict[str, CompressionParams]:
    return {} if _tensors is None else dict(_tensors.params)


def declare_again(params: Mapping[str, CompressionParams]) -> None:
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
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Start to replace a tensor by its average, or sum, over all workers, and return at once.

    All workers call this in the same order, with tensors of the same name, shape and dtype.

    Parameters
    ----------
    tensor : Tensor
        A tensor of any dtype except bool, not quantized. A sparse tensor is sent uncompressed.
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
        The argument is not a tensor, its dtype is bool, it is quantized, or its layout is neither
        strided nor COO.
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
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Like `push_pull_async_inplace`, but the result is a new tensor."""
    copy = tensor.detach().clone() if isinstance(tensor, torch.Tensor) else tensor
    return push_pull_async_inplace(copy, average, name, version, priority)


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
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
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: str | None) -> torch.Tensor:
        ctx.average, ctx.name = average, f"the gradient of {name}" if name else None
        return synchronize(push_pull_async(tensor, average, name))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return push_pull(gradient, ctx.average, ctx.name), None, None


def _require_numbers(tensor: Any, name: str | None) -> None:
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
    if tensor.is_quantized:
        raise TypeError(
            f"{called} is quantized, so it cannot be summed: convert it, as by x.dequantize()"
        )


def _require_writable(tensor: torch.Tensor, name: str | None) -> None:
    """Raise a RuntimeError, like PyTorch's in-place functions, if a dense tensor is expanded."""
    if tensor.is_sparse:
        return
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        raise RuntimeError(
            f"{_called(name)} is expanded, so the sum cannot be written to it: pass x.clone()"
        )


def _called(name: str | None) -> str:
    return f"tensor '{name}'" if name else "tensor"


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
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


class Handle:
    """A tensor that its sum or average replaces; for `poll` and `synchronize`."""

    def __init__(self, tensor: torch.Tensor, name: str | None, average: bool) -> None:
        self.tensor, self.name, self.average = tensor, name, average
        self.called = f"tensor '{name}'" if name else f"a tensor of shape {tuple(tensor.shape)}"
        self.order = gpu.Order(tensor.device, [] if tensor.is_sparse else [tensor])
        self.future: Future[torch.Tensor] = future_on(tensor.device)

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "average": bool(self.average),
            "shape": list(self.tensor.shape),
            "dtype": str(self.tensor.dtype),
            "layout": str(self.tensor.layout),
        }


class _Sums:
    """Sums single tensors, one after the other, on its own threads."""

    def __init__(self) -> None:
        groups.require_init()
        ranks = range(dist.get_world_size())
        self._groups = groups.take(ranks, everybody=True)
        self._workers = len(ranks)
        self._exchange = new_exchange()
        self._lane = self._exchange.lane()
        self.params: dict[str, CompressionParams] = {}
        self._expected: dict[str, Tensor] = {}
        self._pipeline = Pipeline([self._compare, self._sum], lambda handle: None, self._failed)

    def declare(self, name: str, params: CompressionParams) -> None:
        if self.params.setdefault(name, params) != params:
            raise ValueError(f"tensor '{name}' is declared already, with other compression")

    def put(self, handle: Handle) -> None:
        self._pipeline.put(handle)

    def close(self) -> None:
        """Stop the threads after all sums are complete."""
        self._pipeline.close()
        self._exchange.close()
        groups.give_back(self._groups)

    @staticmethod
    def _failed(handle: Handle, error: BaseException) -> None:
        if not handle.future.done():
            handle.future.set_exception(error)

    def _compare(self, handle: Handle) -> None:
        """The first stage: compare the tensors of all workers."""
        own = handle.described()
        digest = hashlib.sha256(json.dumps(own).encode()).digest()
        mine, doing = np.frombuffer(digest, np.int64).tolist(), "call push_pull"
        if len(set(gathering.gather_numbers(mine, doing, self._groups[0]))) == 1:
            return
        gather = partial(gathering.gather, group=self._groups[0])
        try:
            gathering.agree(gather, [("push_pull", own)], doing)
        except RuntimeError as error:
            handle.future.set_exception(error)

    def _sum(self, handle: Handle) -> None:
        """The second stage: sum the tensor, unless the workers differ."""
        if handle.future.done():
            return
        tensor = handle.tensor
        try:
            if handle.name in self.params and not _is_whole(tensor.dtype) and not tensor.is_sparse:
                self._sum_compressed(handle)
                return
            with handle.order.queue():
                if tensor.is_sparse:
                    self._sum_sparse(handle)
                else:
                    add = _sum_integers if _is_whole(tensor.dtype) else _sum_dense
                    add(handle, self._workers)
                handle.future.set_result(tensor)
        except (OverflowError, ValueError) as error:  # the same on all workers: they can continue
            handle.future.set_exception(error)

    def _sum_sparse(self, handle: Handle) -> None:
        tensor, name = handle.tensor, handle.name or ""
        whole = _is_whole(tensor.dtype)
        values = _summands_of_sparse(tensor) if whole else tensor
        average = handle.average and not whole
        results: list[torch.Tensor] = []
        ready = gpu.mark(tensor.device)
        request = SparseRequest(name, values, results.append, average=average, ready=ready)
        future: Future[None] = Future()
        start_sparse(self._exchange, request, resolving(future, lambda found: None))
        future.wait()
        (result,) = results
        if whole:
            totals = result.values().movedim(-1, 0).contiguous()
            result = _sparse(result.indices(), _whole(totals, handle, self._workers), tensor.shape)
        with torch.no_grad():
            tensor.copy_(result.to(tensor.device))

    def _sum_compressed(self, handle: Handle) -> None:
        tensor, name = handle.tensor, handle.name
        self._expect(name, tensor)
        with handle.order.queue():
            staged = staging.Staged({name: tensor})

        def result(found: Result) -> torch.Tensor:
            staged.finish(1.0)
            return tensor

        done = resolving(handle.future, result, staged)
        self._lane.start(Request(staged, average=handle.average), done)

    def _expect(self, name: str, tensor: torch.Tensor) -> None:
        params, index = self.params[name], list(self.params).index(name)
        current, first = declared(name, tensor, params, index), self._expected.get(name)
        if first is None:
            self._lane.declare([current])
            self._expected[name] = current.plan
        elif (first.size, first.dtype) != (current.plan.size, current.plan.dtype):
            raise ValueError(
                f"tensor '{name}' must have {first.size} elements of {first.dtype}, as when it was "
                f"first summed; got {current.plan.size} of {current.plan.dtype}"
            )


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _summands_of_sparse(tensor: torch.Tensor) -> torch.Tensor:
    """Return the `integers.summands` of a sparse tensor, in an additional last dimension."""
    summands = integers.summands(tensor.detach()._values().cpu().numpy())
    values = torch.from_numpy(np.stack(summands, axis=-1))
    return _sparse(tensor._indices().cpu(), values, (*tensor.shape, len(summands)))


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        indices, values, shape, device=values.device, check_invariants=False
    )


def _sum_dense(handle: Handle, workers: int) -> None:
    """Sum a dense tensor of floats or complex numbers. 16-bit floats are added in float32."""
    values = staging.as_real(handle.tensor.data.resolve_conj())
    total = values.to(staging.working_dtype(values.dtype)).contiguous()
    dist.all_reduce(total)
    if handle.average:
        total /= workers
    handle.tensor.data.copy_(staging.shaped(total, handle.tensor))


def _sum_integers(handle: Handle, workers: int) -> None:
    tensor = handle.tensor.data
    summands = integers.summands(tensor.cpu().reshape(-1).numpy())
    totals = torch.from_numpy(np.stack(summands)).to(tensor.device)
    dist.all_reduce(totals)
    result = _whole(totals.cpu(), handle, workers)
    tensor.copy_(result.view(tensor.shape))


def _whole(totals: torch.Tensor, handle: Handle, workers: int) -> torch.Tensor:
    """Return the sums or averages, as integers, given the sums of `integers.summands`."""
    sums = list(totals.numpy())
    dtype = staging.planned_dtype(handle.tensor.dtype)
    if handle.average:
        return torch.from_numpy(integers.average(sums, workers, dtype))
    return torch.from_numpy(integers.total(sums, dtype, handle.called))

"""BytePS's functions that sum or average single tensors over all workers.

A tensor whose name was declared travels compressed; others are torch.distributed's to sum.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch
import torch.distributed as dist

from ..compression import CompressionParams, byteps
from ..plan import Tensor
from . import staging
from .exchange import Exchange
from .job import Job


class Handle:
    """A tensor on its way.

    Parameters
    ----------
    wait : callable
        Returns when the result is in the output.
    poll : callable
        Whether it would return at once.
    output : Tensor
    """

    def __init__(
        self, wait: Callable[[], Any], poll: Callable[[], bool], output: torch.Tensor
    ) -> None:
        self.wait, self.poll, self.output = wait, poll, output


class _Declared:
    """The tensors that travel compressed, by their names."""

    def __init__(self) -> None:
        self._exchange = Exchange()
        self._params: Dict[str, CompressionParams] = {}
        self._expected: Dict[str, Tensor] = {}

    def __contains__(self, name: Optional[str]) -> bool:
        return name in self._params

    def declare(self, name: str, params: CompressionParams) -> None:
        if name in self._params:
            raise ValueError(f"tensor '{name}' is declared already")
        self._params[name] = params

    def sum(self, name: str, tensor: torch.Tensor, scale: float) -> torch.futures.Future[None]:
        """Replace a flat, contiguous tensor by scale times the sum over workers."""
        self._expect(name, tensor)
        future: torch.futures.Future[None] = torch.futures.Future()
        staged = staging.Staged({name: tensor})

        def done(job: Job, error: Optional[BaseException]) -> None:
            if error is not None:
                future.set_exception(error)
                return
            staged.finish(1.0)
            future.set_result(None)

        self._exchange.start(Job(staged, scale, {}, done))
        return future

    def _expect(self, name: str, tensor: torch.Tensor) -> None:
        params, dtype = self._params[name], staging.planned_dtype(tensor.dtype)
        now = Tensor(name, tensor.numel(), dtype, params, list(self._params).index(name))
        known = self._expected.get(name)
        if known is None:
            wire = staging.wire_of(tensor.dtype, params.fp16)
            self._exchange.declare([now], {name: wire}, {name: tensor.device})
            self._expected[name] = now
        elif (known.size, known.dtype) != (now.size, now.dtype):
            raise ValueError(
                f"tensor '{name}' must have {known.size} elements of {known.dtype}, as when it was "
                f"first summed; got {now.size} of {now.dtype}"
            )

    def close(self) -> None:
        self._exchange.close()


_declared: Optional[_Declared] = None


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
        Wrong keys or values, or a name that is declared already.
    """
    global _declared
    params = byteps.translate(compression).parse().require_chosen()
    if _declared is None:
        _declared = _Declared()
    _declared.declare(name, params)


def forget() -> None:
    """Forget what was declared; all that is under way must be done."""
    global _declared
    if _declared is not None:
        _declared.close()
    _declared = None


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """Begin to replace a tensor by its average, or sum, over all workers; returns at once.

    All workers call this with tensors alike, in the same order.

    Parameters
    ----------
    tensor : Tensor
    average : bool
        Whether the sum is divided by `size()`; an average of integers is rounded towards zero.
    name : str, optional
        As it was declared.
    version, priority : int
        Accepted, without effect, as BytePS has them.

    Returns
    -------
    Handle
        For `poll` and `synchronize`.
    """
    workers = dist.get_world_size()
    values = tensor.detach()
    whole = values.contiguous().view(-1)
    if _declared is not None and name in _declared and tensor.is_floating_point():
        future = _declared.sum(name, whole, 1.0 / workers if average else 1.0)
        wait, poll, divides = future.wait, future.done, False
    else:
        work = dist.all_reduce(whole, async_op=True)
        wait, poll, divides = work.wait, work.is_completed, average

    def finish() -> None:
        wait()
        if divides:
            whole.div_(workers, rounding_mode=None if whole.is_floating_point() else "trunc")
        if whole.data_ptr() != values.data_ptr():
            values.copy_(whole.view_as(values))

    return Handle(finish, poll, tensor)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> Handle:
    """As `push_pull_async_inplace`, but the result is a new tensor."""
    copy = tensor.detach().clone()
    return push_pull_async_inplace(copy, average, name, version, priority)


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: Optional[str] = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """The average, or sum, of a tensor over all workers; see `push_pull_async_inplace`."""
    return synchronize(push_pull_async(tensor, average, name, version, priority))


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
    return handle.poll()


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for a result, and return it."""
    handle.wait()
    return handle.output

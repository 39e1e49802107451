"""Sums of single tensors, one after the other, on separate threads.

A tensor with a declared name is sent compressed. torch.distributed sums the other tensors. Before
each sum, the workers compare the tensors' names, shapes and dtypes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from ..compression import CompressionParams
from ..plan import Tensor
from . import gathering, gpu, groups, staging
from .declared_tensor import declared
from .exchange import Exchange
from .header import SAME
from .job import Job, resolving
from .pipeline import Pipeline
from .sparse import SparseJob, SparseSum


class Handle:
    """A tensor that is being summed; for `poll` and `synchronize`.

    Parameters
    ----------
    tensor : Tensor
        The sum or average replaces its values.
    name : str, optional
    average : bool

    Attributes
    ----------
    future : Future
    """

    def __init__(self, tensor: torch.Tensor, name: Optional[str], average: bool) -> None:
        self.tensor, self.name, self.average = tensor, name, average
        self.called = f"tensor '{name}'" if name else f"a tensor of shape {tuple(tensor.shape)}"
        self.ready = gpu.mark(tensor.device)
        self.future: Future[None] = Future()

    def described(self) -> Dict[str, Any]:
        """Return values that must be the same on all workers."""
        return {
            "name": self.name,
            "average": bool(self.average),
            "shape": list(self.tensor.shape),
            "dtype": str(self.tensor.dtype),
            "layout": str(self.tensor.layout),
        }


class SingleTensors:
    """Sums single tensors, one after the other, on its own threads.

    Attributes
    ----------
    params : dict of str to CompressionParams
        The compression of each declared tensor.
    """

    def __init__(self) -> None:
        ranks = range(dist.get_world_size())
        self._groups = groups.take(ranks, everybody=True)
        self._workers = len(ranks)
        self._exchange: Optional[Exchange] = None
        self.params: Dict[str, CompressionParams] = {}
        self._expected: Dict[str, Tensor] = {}
        self._pipeline = Pipeline([self._compare, self._sum], lambda handle: None, self._failed)

    def declare(self, name: str, params: CompressionParams) -> None:
        """Set the compression of the tensor with this name."""
        if self.params.setdefault(name, params) != params:
            raise ValueError(f"tensor '{name}' is declared already, with other compression")
        if self._exchange is None:
            self._exchange = Exchange()

    def put(self, handle: Handle) -> None:
        """Start to sum a tensor."""
        self._pipeline.put(handle)

    def close(self) -> None:
        """Stop the threads after all sums are complete."""
        self._pipeline.close()
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
        try:
            gathering.agree(self._gather, [("push_pull", own)], doing)
        except RuntimeError as error:
            handle.future.set_exception(error)

    def _gather(self, mine: Any, doing: str) -> Any:
        return gathering.gather(mine, doing, self._groups[0])

    def _sum(self, handle: Handle) -> None:
        """The second stage: sum the tensor, unless the workers differ."""
        if handle.future.done():
            return
        tensor = handle.tensor
        try:
            if handle.name in self.params and not _is_whole(tensor.dtype) and not tensor.is_sparse:
                self._sum_compressed(handle)
                return
            if tensor.is_sparse:
                self._sum_sparse(handle)
            else:
                with gpu.queue(tensor.device, handle.ready):
                    _sum_plain(handle, self._workers)
            handle.future.set_result(None)
        except (OverflowError, ValueError) as error:  # the same on all workers: they can continue
            handle.future.set_exception(error)

    def _sum_sparse(self, handle: Handle) -> None:
        tensor, name = handle.tensor, handle.name or ""
        job = SparseJob(name, tensor, absent=False, stamp=SAME, done=lambda job, error: None)
        transfer = SparseSum(name, self._groups)
        for stage in (transfer.send, transfer.answer, transfer.deliver):
            stage(job)
        with torch.no_grad():
            tensor.copy_(job.result if handle.average else job.result * self._workers)

    def _sum_compressed(self, handle: Handle) -> None:
        tensor, name = handle.tensor, handle.name
        self._expect(name, tensor)
        staged = staging.Staged({name: tensor})

        scale = 1.0 / self._workers if handle.average else 1.0
        done = resolving(handle.future, lambda job: staged.finish(1.0))
        self._exchange.start(Job(staged, scale, {}, done))

    def _expect(self, name: str, tensor: torch.Tensor) -> None:
        params, index = self.params[name], list(self.params).index(name)
        current, first = declared(name, tensor, params, index), self._expected.get(name)
        if first is None:
            self._exchange.declare([current])
            self._expected[name] = current.plan
        elif (first.size, first.dtype) != (current.plan.size, current.plan.dtype):
            raise ValueError(
                f"tensor '{name}' must have {first.size} elements of {first.dtype}, as when it was "
                f"first summed; got {current.plan.size} of {current.plan.dtype}"
            )


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _sum_plain(handle: Handle, workers: int) -> None:
    """Sum a dense tensor. Integers are added in 64 bits, to avoid overflow on the way."""
    values = staging.as_real(handle.tensor.data.resolve_conj())
    whole = _is_whole(values.dtype)
    total = values.to(torch.int64) if whole else values.contiguous()
    dist.all_reduce(total)
    if handle.average:
        total = total.div_(workers, rounding_mode="trunc" if whole else None)
    elif whole and total.numel():
        limits = torch.iinfo(values.dtype)
        least, most = total.min().item(), total.max().item()
        if least < limits.min or most > limits.max:
            raise OverflowError(
                f"the sum of {handle.called} does not fit into {values.dtype}: it goes from "
                f"{least} to {most}"
            )
    staging.as_real(handle.tensor.data).copy_(total)

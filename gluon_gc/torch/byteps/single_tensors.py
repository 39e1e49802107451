"""Sums of single tensors, one after the other, on separate threads.

A tensor with a declared name is sent compressed. torch.distributed sums the other tensors. Before
each sum, the workers compare the tensors' names, shapes and dtypes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from ... import integers
from ...compression import CompressionParams
from ...plan import Tensor
from .. import gathering, gpu, groups, staging
from ..declared_tensor import declared
from ..exchange import Exchange
from ..header import SAME
from ..job import Job, resolving
from ..pipeline import Pipeline
from ..sparse import SparseJob, SparseSum


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
        groups.require_init()
        ranks = range(dist.get_world_size())
        self._groups = groups.take(ranks, everybody=True)
        self._workers = len(ranks)
        self._exchange: Optional[Exchange] = None
        self.params: Dict[str, CompressionParams] = {}
        self._expected: Dict[str, Tensor] = {}
        self._sparse = SparseSum("", self._groups, groups.Tags(ranks).take(0))
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
                add = _sum_integers if _is_whole(tensor.dtype) else _sum_dense
                with gpu.queue(tensor.device, handle.ready):
                    add(handle, self._workers)
            handle.future.set_result(None)
        except (OverflowError, ValueError) as error:  # the same on all workers: they can continue
            handle.future.set_exception(error)

    def _sum_sparse(self, handle: Handle) -> None:
        tensor, name = handle.tensor, handle.name or ""
        whole = _is_whole(tensor.dtype)
        values = _summands_of_sparse(tensor) if whole else tensor
        average = handle.average and not whole
        job = SparseJob(name, values, False, SAME, lambda job, error: None, average)
        for stage in (self._sparse.send, self._sparse.answer, self._sparse.deliver):
            stage(job)
        result = job.result
        if whole:
            totals = result.values().movedim(-1, 0).contiguous()
            result = _sparse(result.indices(), _whole(totals, handle, self._workers), tensor.shape)
        with torch.no_grad():
            tensor.copy_(result.to(tensor.device))

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
    """Sum a dense tensor of integers exactly."""
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

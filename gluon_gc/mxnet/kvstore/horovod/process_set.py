"""Horovod itself, the workers that take part in one of its collectives, and their nodes."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from .... import env, kernels
from ...engine import order

# A broadcast is cut into pieces of this size: Gloo gives up after HOROVOD_GLOO_TIMEOUT_SECONDS.
_BROADCAST_BYTES = 4 * 2**20


def load() -> Any:
    """Import horovod.mxnet, and patch a race in it.

    Horovod 0.28.1 may free the name of a finished collective while a thread still reads it. The
    patch keeps the name until then (operators/mxnet/horovod.cpp).
    """
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise ImportError(
            f"the horovod backend needs Horovod built for this MXNet ({error}); "
            "docs/guides/horovod.md says how"
        ) from None
    alltoall = hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_alltoall_async
    within, push = (ctypes.cast(f, ctypes.c_void_p) for f in (alltoall, _LIB.MXEnginePushAsync))
    kernels.library.gluon_gc_keep_arguments(within, push)
    return hvd


class Packed(NamedTuple):
    """Bytes for, or from, each member of a process set."""

    data: NDArray  # uint8: the bytes of each member in order. It is as long as they can ever be
    splits: NDArray  # int32, shape (members,): the number of bytes of each member


class ProcessSet:
    """A process set of Horovod: all workers, or some of them.

    All methods are collective: every member calls them in the same order, with the same `name`.
    Horovod refuses a name that is still in use.
    """

    def __init__(self, hvd: Any, ranks: Sequence[int]) -> None:
        self._hvd = hvd
        has_all = len(ranks) == hvd.size()
        self._set = hvd.global_process_set if has_all else hvd.add_process_set(list(ranks))
        self.ranks = list(ranks)
        self.size = len(ranks)
        self.rank = self.ranks.index(hvd.rank()) if hvd.rank() in ranks else -1  # in this set

    def gather(self, data: bytes, name: str) -> bytes:
        """The data of all members, concatenated in the order of their ranks. Blocks."""
        gathered = self._hvd.allgather(_array(data), name=_full(name), process_set=self._set)
        return _bytes(gathered)

    def alltoall(self, data: Sequence[bytes], name: str) -> bytes:
        """Send bytes to each member. Returns the senders' bytes in order of ranks. Blocks."""
        splits = mx.nd.array([len(piece) for piece in data], dtype="int32")
        whole = _array(b"".join(data))
        received, _ = self._hvd.alltoall(
            whole, splits=splits, name=_full(name), process_set=self._set
        )
        return _bytes(received)

    def exchange(self, packed: Packed, received: Packed, name: str) -> None:
        """Queue an alltoall of `packed` into `received`, and return at once.

        Horovod's Python function waits for the output's size. Here `received` has the largest size.
        Horovod gives its output array the actual size, on its own thread, so each call has a new
        handle.
        """
        filled = order.second_handle(received.data)
        check_call(
            self._hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_alltoall_async(
                packed.data.handle,
                filled,
                _full(name).encode(),
                packed.splits.handle,
                received.splits.handle,
                ctypes.c_int(0),
                ctypes.c_int(self._set.process_set_id),
            )
        )
        order.free_when_done(filled, received.data)

    def all_gather(self, data: NDArray, received: NDArray, name: str) -> None:
        """Queue an allgather of uint8 `data` into `received`, which has its exact size."""
        sent, filled = data.handle, order.second_handle(received)
        check_call(
            self._hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_allgather_async(
                ctypes.byref(sent),
                ctypes.byref(filled),
                _full(name).encode(),
                ctypes.c_int(0),
                ctypes.c_int(self._set.process_set_id),
                ctypes.c_int(1),
            )
        )
        order.free_when_done(filled, received)

    def sum_in_place(self, arrays: list[NDArray], name: str) -> None:
        """Overwrite arrays with their sums over all members. Does not block."""
        self._hvd.grouped_allreduce_(arrays, average=False, name=_full(name), process_set=self._set)

    def broadcast(self, array: NDArray, root: int, name: str) -> None:
        flat, most = array.reshape(-1), _BROADCAST_BYTES // np.dtype(array.dtype).itemsize
        for begin in range(0, flat.size, most):
            piece, full = flat[begin : begin + most], _full(f"{name}.{begin}")
            self._hvd.broadcast_(piece, root, name=full, process_set=self._set)


def nodes_of(hvd: Any) -> list[list[int]]:
    """The ranks of each node: a host, or BYTEPS_LOCAL_SIZE consecutive ranks if that is set."""
    size, local_size = hvd.size(), hvd.local_size()
    mine = mx.nd.array([hvd.cross_rank()], dtype="int32")
    node_of = host_of = hvd.allgather(mine, name=_full("hosts")).asnumpy().tolist()
    if env.is_set("BYTEPS_LOCAL_SIZE"):
        local_size = env.get("BYTEPS_LOCAL_SIZE")
        if size % local_size:
            raise env.ConfigurationError(
                f"BYTEPS_LOCAL_SIZE must divide the {size} workers, got {local_size}"
            )
        node_of = [rank // local_size for rank in range(size)]
    nodes = [[r for r in range(size) if node_of[r] == node] for node in sorted(set(node_of))]
    for node in nodes:
        if len({host_of[rank] for rank in node}) > 1:
            raise env.ConfigurationError(
                f"BYTEPS_LOCAL_SIZE is {local_size}, but the workers of ranks {node} are on "
                "several hosts"
            )
    if any(len(node) != local_size for node in nodes):
        raise env.ConfigurationError(
            f"every node must have the same number of workers, but their ranks are {nodes}"
        )
    return nodes


def _full(name: str) -> str:
    return f"gluon_gc.{name}"


def _array(data: bytes) -> NDArray:
    return mx.nd.array(np.frombuffer(data, np.uint8), dtype="uint8")


def _bytes(array: NDArray) -> bytes:
    return array.asnumpy().tobytes()

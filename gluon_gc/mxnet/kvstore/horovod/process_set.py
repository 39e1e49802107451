"""Workers who exchange among themselves through Horovod, and the nodes that they are on."""

from __future__ import annotations

import ctypes
from typing import Any, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import check_call
from mxnet.ndarray import NDArray

from .... import env
from ... import engine
from .bundle import Packed

_BROADCAST_BYTES = 4 * 2**20  # at once: Gloo gives up what takes HOROVOD_GLOO_TIMEOUT_SECONDS


class ProcessSet:
    """All workers, or some of them: Horovod's process set, and where this worker is in it.

    Every member calls the same methods in the same order. `name` says what is exchanged; Horovod
    refuses one that is still at work.

    Parameters
    ----------
    hvd : module
        horovod.mxnet, initialized.
    ranks : sequence of int
        The members, in ascending order. All workers must make the same sets in the same order.

    Attributes
    ----------
    place : int
        This worker's number among the members; -1: it is none.
    """

    def __init__(self, hvd: Any, ranks: Sequence[int]) -> None:
        self._hvd = hvd
        everybody = len(ranks) == hvd.size()
        self._set = hvd.global_process_set if everybody else hvd.add_process_set(list(ranks))
        self.ranks = list(ranks)
        self.size = len(ranks)
        self.place = self.ranks.index(hvd.rank()) if hvd.rank() in ranks else -1

    def gather(self, data: bytes, name: str) -> bytes:
        """All members' data, by rank; waits for them."""
        gathered = self._hvd.allgather(_array(data), name=_full(name), process_set=self._set)
        return _bytes(gathered)

    def alltoall(self, data: Sequence[bytes], name: str) -> bytes:
        """What all members have for this one, by rank, given what this one has for each; waits."""
        splits = mx.nd.array([len(piece) for piece in data], dtype="int32")
        whole = _array(b"".join(data))
        received, _ = self._hvd.alltoall(
            whole, splits=splits, name=_full(name), process_set=self._set
        )
        return _bytes(received)

    def exchange(self, packed: Packed, came: Packed, name: str) -> None:
        """Queue an alltoall of what is packed, into `came`; returns at once.

        Horovod's own function waits, since it knows no size before; here there is room for the
        most. It gives the array that is filled the shape of what came, from a thread of its own:
        so it has another handle each time, and `came` stays as it is.
        """
        filled = engine.second_handle(came.data)
        check_call(
            self._hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_alltoall_async(
                packed.data.handle,
                filled,
                _full(name).encode(),
                packed.splits.handle,
                came.splits.handle,
                ctypes.c_int(0),
                ctypes.c_int(self._set.process_set_id),
            )
        )
        engine.free_when_done(filled, came.data)

    def spread(self, data: NDArray, came: NDArray, name: str) -> None:
        """Queue an allgather of uint8, into `came`, which has as many as come; returns at once."""
        given, filled = data.handle, engine.second_handle(came)
        check_call(
            self._hvd.mpi_ops.MPI_MXNET_LIB_CTYPES.horovod_mxnet_allgather_async(
                ctypes.byref(given),
                ctypes.byref(filled),
                _full(name).encode(),
                ctypes.c_int(0),
                ctypes.c_int(self._set.process_set_id),
                ctypes.c_int(1),
            )
        )
        engine.free_when_done(filled, came)

    def sum_in_place(self, arrays: List[NDArray], name: str) -> None:
        """Overwrite arrays with their sums over all members."""
        self._hvd.grouped_allreduce_(arrays, average=False, name=_full(name), process_set=self._set)

    def broadcast(self, array: NDArray, root: int, name: str) -> None:
        """Overwrite an array with that of the worker of rank `root`, piece by piece."""
        flat, most = array.reshape(-1), _BROADCAST_BYTES // np.dtype(array.dtype).itemsize
        for begin in range(0, flat.size, most):
            piece, full = flat[begin : begin + most], _full(f"{name}.{begin}")
            self._hvd.broadcast_(piece, root, name=full, process_set=self._set)


def nodes_of(hvd: Any) -> List[List[int]]:
    """The ranks of each node: BYTEPS_LOCAL_SIZE neighbours, or as Horovod's hosts have them.

    Raises
    ------
    ConfigurationError
        Nodes would differ in their number of workers, or be of several hosts.
    """
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

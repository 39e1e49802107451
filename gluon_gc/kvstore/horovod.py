"""The backend over Horovod: workers only, each of which aggregates some of the chunks.

Compressed chunks travel in groups: an alltoall brings the payloads of a chunk to its owner, who
aggregates them as a server would, and an allgather brings everybody what all owners answered.
Values that are summed as they are travel as grouped allreduces.
"""

from __future__ import annotations

import atexit
import itertools
import json
import sys
from typing import Any, ClassVar, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .. import env
from . import handshake, plan
from .aggregator import Aggregator
from .base import CompressingKVStore
from .gradient import Gradients
from .plan import Chunk
from .watch import die_of

_GROUP_BYTES = 16 * 2**20  # of values: each collective costs a cycle of Horovod's


def _load() -> Any:
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise ImportError(
            f"the horovod backend needs Horovod built for this MXNet ({error}); "
            "docs/horovod.md says how"
        ) from None
    return hvd


def _groups(chunks: Sequence[Chunk]) -> Iterator[List[Chunk]]:
    """Chunks that travel together: neighbours, of at most _GROUP_BYTES of values."""
    group: List[Chunk] = []
    total = 0
    for chunk in chunks:
        size = chunk.size * np.dtype(chunk.dtype).itemsize
        if group and total + size > _GROUP_BYTES:
            yield group
            group, total = [], 0
        group.append(chunk)
        total += size
    if group:
        yield group


@KVStoreBase.register
class GluonGCHorovod(CompressingKVStore):
    """Compressed gradients through Horovod: started by horovodrun or mpirun.

    Raises
    ------
    ImportError
        Horovod is not there, or was built without MXNet.
    RuntimeError
        Workers differ in version or settings.
    """

    type = "horovod"
    connected: ClassVar[Optional["GluonGCHorovod"]] = None
    """The one connection that a process can have."""

    def __init__(self) -> None:
        super().__init__()
        if self.connected is not None:
            raise RuntimeError("this process is connected to its Horovod already")
        self._hvd = _load()
        self._hvd.init()
        self.rank, self.num_workers = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()
        self._aggregator = Aggregator(env.server_threads())
        self._keys: Dict[Chunk, int] = {}
        self._owners: Dict[Chunk, int] = {}
        # Horovod refuses a name that is still at work: a chunk is always summed in the same array,
        # for which MXNet's engine ends one sum before it begins the next.
        self._summed: Dict[Chunk, NDArray] = {}
        self._broadcasts = itertools.count()
        sys.excepthook = die_of
        atexit.register(self.close)
        GluonGCHorovod.connected = self
        self._agree({})

    def close(self) -> None:
        """Leave once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is not None:
            GluonGCHorovod.connected = None
            mx.nd.waitall()
            self._hvd.shutdown()

    # Set-up: every worker comes here with the same chunks

    def _agree(self, about: Mapping[str, Any]) -> None:
        hello = json.dumps(handshake.describe(self.rank, about)).encode() + b"\n"
        everybody = self._gather(hello, "hello").splitlines()
        problem = handshake.difference([json.loads(line) for line in everybody])
        if problem:
            raise RuntimeError(f"the cluster does not fit together: {problem}")

    def _open(self, chunks: Sequence[Chunk]) -> None:
        owners = plan.spread([chunk.message_bytes for chunk in chunks], self.num_workers)
        for chunk, owner in zip(chunks, owners):
            key = self._keys[chunk] = len(self._keys)
            self._owners[chunk] = owner
            if not chunk.aggregated:
                values = chunk.message_bytes // np.dtype(chunk.dtype).itemsize
                self._summed[chunk] = mx.nd.zeros(values, dtype=chunk.dtype)
            else:
                start = self._start(chunk, node=self.num_workers)
                if owner == self.rank:
                    self._aggregator.add(key, chunk.params, chunk.size, chunk.dtype, start)

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype."""
        if not 0 <= root_rank < self.num_workers:
            raise ValueError(f"root_rank must be in [0, {self.num_workers}), got {root_rank}")
        shapes = [(array.shape, np.dtype(array.dtype).name) for array in arrays]
        self._agree({"parameters to broadcast": shapes, "root_rank": root_rank})
        for array, number in zip(arrays, self._broadcasts):
            self._hvd.broadcast_(array, root_rank, name=f"gluon_gc.broadcast.{number}")

    # A step: what is computed is queued on MXNet's engine, while bytes wait for all workers

    def _exchange(self, chunks: Sequence[Chunk], gradients: Gradients, priority: int) -> None:
        ready_first = list(reversed(chunks))  # the last layers' gradients are
        outgoing = {chunk: self._outgoing(chunk, gradients) for chunk in ready_first}
        summed = [chunk for chunk in ready_first if not chunk.aggregated]
        for chunk in summed:
            outgoing[chunk] = outgoing[chunk].copyto(self._summed[chunk])
        for dtype in sorted({chunk.dtype for chunk in summed}):
            for group in _groups([chunk for chunk in summed if chunk.dtype == dtype]):
                arrays = [outgoing[chunk] for chunk in group]
                self._hvd.grouped_allreduce_(
                    arrays, average=False, name=f"gluon_gc.sum.{self._keys[group[0]]}"
                )
        groups = list(_groups([chunk for chunk in ready_first if chunk.aggregated]))
        replies = [self._bring_to_owners(group, outgoing) for group in groups]
        for group, reply in zip(groups, replies):
            outgoing.update(self._bring_back(group, reply))
        for chunk in ready_first:
            self._deliver(chunk, outgoing[chunk], gradients)

    def _bring_to_owners(
        self, group: Sequence[Chunk], payloads: Mapping[Chunk, NDArray]
    ) -> List[NDArray]:
        """The aggregates, not yet computed, of the chunks of a group that this worker owns."""
        by_owner = self._by_owner(group)
        parts = [[_used(chunk, payloads[chunk]) for chunk in owned] for owned in by_owner]
        received = self._alltoall(
            [b"".join(part) for part in parts], f"to_owners.{self._keys[group[0]]}"
        )
        mine = by_owner[self.rank]
        messages = list(_split(mine * self.num_workers, received))
        return [
            self._aggregator.reduce(self._keys[chunk], _rows(chunk, messages[i :: len(mine)]))
            for i, chunk in enumerate(mine)
        ]

    def _bring_back(
        self, group: Sequence[Chunk], reply: Sequence[NDArray]
    ) -> Iterator[Tuple[Chunk, NDArray]]:
        """The aggregates of all chunks of a group."""
        by_owner = self._by_owner(group)
        mine = b"".join(_used(c, payload) for c, payload in zip(by_owner[self.rank], reply))
        everything = self._gather(mine, f"bring_back.{self._keys[group[0]]}")
        in_order = [chunk for owned in by_owner for chunk in owned]
        for chunk, message in zip(in_order, _split(in_order, everything)):
            yield chunk, _rows(chunk, [message]).reshape((-1,))

    def _by_owner(self, group: Sequence[Chunk]) -> List[List[Chunk]]:
        return [[c for c in group if self._owners[c] == rank] for rank in range(self.num_workers)]

    # Checkpoints: each worker's has what it carries over for the chunks that it owns

    def _chunk_state(self, chunk: Chunk) -> Dict[str, Any]:
        state = super()._chunk_state(chunk)
        if self._keys[chunk] in self._aggregator:
            state["aggregator"] = self._aggregator.state(self._keys[chunk])
        return state

    def _load_chunk_state(self, chunk: Chunk, state: Mapping[str, Any]) -> None:
        super()._load_chunk_state(chunk, state)
        if self._keys[chunk] in self._aggregator:
            self._aggregator.load_state(self._keys[chunk], state["aggregator"])

    # Bytes

    def _gather(self, data: bytes, name: str) -> bytes:
        """All workers' data, by rank."""
        return _bytes(self._hvd.allgather(_array(data), name=f"gluon_gc.{name}"))

    def _alltoall(self, data: Sequence[bytes], name: str) -> bytes:
        """What all workers have for this one, by rank, given what this one has for each."""
        splits = mx.nd.array([len(piece) for piece in data], dtype="int32")
        whole = _array(b"".join(data))
        received, _ = self._hvd.alltoall(whole, splits=splits, name=f"gluon_gc.{name}")
        return _bytes(received)


def _array(data: bytes) -> NDArray:
    return mx.nd.array(np.frombuffer(data, np.uint8), dtype="uint8")


def _bytes(array: NDArray) -> bytes:
    return array.asnumpy().tobytes()


def _used(chunk: Chunk, payload: NDArray) -> bytes:
    """The bytes of a payload that are in use."""
    data = payload.asnumpy()
    return data[: chunk.params.used_bytes(data)].tobytes()


def _split(chunks: Sequence[Chunk], data: bytes) -> Iterator[np.ndarray]:
    """The payloads of chunks that lie one behind the other, uint8."""
    rest = np.frombuffer(data, np.uint8)
    for chunk in chunks:
        most = chunk.params.payload_bytes(chunk.size, chunk.dtype)
        length = chunk.params.used_bytes(rest[:most])
        yield rest[:length]
        rest = rest[length:]


def _rows(chunk: Chunk, payloads: Sequence[np.ndarray]) -> NDArray:
    """Payloads as the rows of an array, uint8, shape (payloads, the most bytes of one)."""
    most = chunk.params.payload_bytes(chunk.size, chunk.dtype)
    rows = np.zeros((len(payloads), most), np.uint8)
    for row, payload in zip(rows, payloads):
        row[: payload.size] = payload
    return mx.nd.array(rows, dtype="uint8")

"""The backend over Horovod: workers only, each of which aggregates some of the chunks.

Compressed chunks travel in groups. An alltoall brings the payloads of a chunk to its owner, who
aggregates them as a server would, and an allgather brings everybody what all owners answered; or
the allgather brings everybody all payloads. Values that are summed as they are travel as grouped
allreduces.

Hierarchical chunks are summed within each node first. Then all workers of a node have the same
values and payload, with which the node's leader takes part in the exchange between nodes.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, ClassVar, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .. import env
from ..leaving import ending
from . import bundle, handshake, plan
from .aggregator import Aggregator
from .base import CompressingKVStore
from .circle import Circle, nodes_of
from .gradient import Gradients
from .plan import Chunk


def _load() -> Any:
    try:
        import horovod.mxnet as hvd
    except ImportError as error:
        raise ImportError(
            f"the horovod backend needs Horovod built for this MXNet ({error}); "
            "docs/horovod.md says how"
        ) from None
    return hvd


@KVStoreBase.register
class GluonGCHorovod(CompressingKVStore):
    """Compressed gradients through Horovod: started by horovodrun or mpirun.

    Raises
    ------
    ImportError
        Horovod is not there, or was built without MXNet.
    ConfigurationError
        Nodes differ in their number of workers.
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
        self._hvd.init(process_sets="dynamic")
        ending().concerns(self)  # after Horovod's own exit handler, to be asked first
        self.rank, self.num_workers = self._hvd.rank(), self._hvd.size()
        self._everybody = Circle(self._hvd, range(self.num_workers))
        nodes = nodes_of(self._hvd)
        (node,) = (node for node in nodes if self.rank in node)
        self.local_rank, self.local_size = node.index(self.rank), len(node)
        self._leader = node[0]
        self._node = self._leaders = self._everybody
        self._number_of_node = nodes.index(node)
        self._circles = [self._everybody]
        if 1 < len(nodes) < self.num_workers:
            self._leaders = Circle(self._hvd, [ranks[0] for ranks in nodes])
            (self._node,) = (c for c in [Circle(self._hvd, n) for n in nodes] if c.place >= 0)
            self._circles.append(self._leaders)
        self._aggregator = Aggregator(env.server_threads())
        self._keys: Dict[Chunk, int] = {}
        self._owners: Dict[Chunk, int] = {}  # places in the chunk's circle
        # Horovod refuses a name that is still at work: a chunk is always summed in the same array,
        # for which MXNet's engine ends one sum before it begins the next.
        self._summed: Dict[Chunk, NDArray] = {}
        self._summed_in_node: Dict[Chunk, NDArray] = {}
        self._broadcasts = itertools.count()
        GluonGCHorovod.connected = self
        self._agree({})

    def close(self) -> None:
        """Leave once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is not None:
            GluonGCHorovod.connected = None
            mx.nd.waitall()
            self._hvd.shutdown()
            ending().concerns(None)

    def abandon(self, why: str) -> None:
        """Leave without the others, whom horovodrun ends once this process has ended."""
        if self.connected is self:
            GluonGCHorovod.connected = None
            ending().abandoned()

    # Set-up: every worker comes here with the same chunks

    def _agree(self, about: Mapping[str, Any]) -> None:
        hello = json.dumps(handshake.describe(self.rank, about)).encode() + b"\n"
        everybody = self._everybody.gather(hello, "hello").splitlines()
        problem = handshake.difference([json.loads(line) for line in everybody])
        if problem:
            raise RuntimeError(f"the cluster does not fit together: {problem}")

    def _open(self, chunks: Sequence[Chunk]) -> None:
        for circle in self._circles:
            inside = [chunk for chunk in chunks if self._circle(chunk) is circle]
            owners = plan.spread([chunk.message_bytes for chunk in inside], circle.size)
            self._owners.update(zip(inside, owners))
        for chunk in chunks:
            key = self._keys[chunk] = len(self._keys)
            if self._hierarchical(chunk):
                self._summed_in_node[chunk] = mx.nd.zeros(chunk.size, dtype=chunk.dtype)
            if chunk.aggregated:
                place, size = self._place(chunk)
                start = self._start(chunk, node=size)
                if self._owners[chunk] == place and self._takes_part(chunk):
                    self._aggregator.add(key, chunk.params, chunk.size, chunk.dtype, start)
            elif not chunk.gathered:
                values = chunk.message_bytes // np.dtype(chunk.dtype).itemsize
                self._summed[chunk] = mx.nd.zeros(values, dtype=chunk.dtype)

    def _hierarchical(self, chunk: Chunk) -> bool:
        hierarchical = chunk.params is not None and chunk.params.hierarchical
        return hierarchical and len(self._circles) > 1

    def _circle(self, chunk: Chunk) -> Circle:
        """Those who exchange a chunk."""
        return self._leaders if self._hierarchical(chunk) else self._everybody

    def _takes_part(self, chunk: Chunk) -> bool:
        return self._circle(chunk).place >= 0

    def _place(self, chunk: Chunk) -> Tuple[int, int]:
        if self._hierarchical(chunk):
            return self._number_of_node, self._leaders.size
        return super()._place(chunk)

    def _message_bytes(self, chunk: Chunk, done: Mapping[str, float]) -> Tuple[float, float]:
        return super()._message_bytes(chunk, done) if self._takes_part(chunk) else (0, 0)

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype."""
        self._agree_to_broadcast(arrays, root_rank)
        for array, number in zip(arrays, self._broadcasts):
            self._everybody.broadcast(array, root_rank, f"broadcast.{number}")

    # A step: what is computed is queued on MXNet's engine, while bytes wait for all workers

    def _exchange(self, chunks: Sequence[Chunk], gradients: Gradients, priority: int) -> None:
        sent = self._all_encoded(chunks, gradients)
        received: Dict[Chunk, NDArray] = {}
        for circle in self._circles:
            inside = [chunk for chunk in chunks if self._circle(chunk) is circle]
            received.update(self._sum_in(circle, inside, sent))
            aggregated = list(bundle.groups([chunk for chunk in inside if chunk.aggregated]))
            replies = [self._bring_to_owners(circle, group, sent) for group in aggregated]
            for group, reply in zip(aggregated, replies):
                received.update(self._bring_back(circle, group, reply))
            for group in bundle.groups([chunk for chunk in inside if chunk.gathered]):
                received.update(self._bring_to_all(circle, group, sent))
        for chunk in chunks:
            self._deliver(chunk, received[chunk], gradients)

    def _all_encoded(self, chunks: Sequence[Chunk], gradients: Gradients) -> Dict[Chunk, NDArray]:
        """What is sent of each chunk: of this worker's values, or of their sum over its node."""
        values = {chunk: self._values(chunk, gradients) for chunk in chunks}
        for group in bundle.by_dtype([chunk for chunk in chunks if chunk in self._summed_in_node]):
            for chunk in group:
                values[chunk] = values[chunk].copyto(self._summed_in_node[chunk])
            arrays = [values[chunk] for chunk in group]
            self._node.sum_in_place(arrays, f"node.{self._keys[group[0]]}")
        return {chunk: self._encoded(chunk, values[chunk]) for chunk in chunks}

    def _sum_in(
        self, circle: Circle, chunks: Sequence[Chunk], sent: Mapping[Chunk, NDArray]
    ) -> Dict[Chunk, NDArray]:
        """The sums of the chunks that are summed as they are."""
        sums = {
            chunk: sent[chunk].copyto(self._summed[chunk])
            for chunk in chunks
            if chunk in self._summed
        }
        for group in bundle.by_dtype(list(sums)):
            if circle.place >= 0:
                arrays = [sums[chunk] for chunk in group]
                circle.sum_in_place(arrays, f"sum.{self._keys[group[0]]}")
        if circle is not self._everybody:
            for chunk, array in sums.items():
                self._node.broadcast(array, self._leader, f"summed.{self._keys[chunk]}")
        return sums

    def _bring_to_owners(
        self, circle: Circle, group: Sequence[Chunk], payloads: Mapping[Chunk, NDArray]
    ) -> List[NDArray]:
        """The aggregates, not yet computed, of the chunks of a group that this worker owns."""
        if circle.place < 0:
            return []
        by_owner = self._by_owner(circle, group)
        parts = [[bundle.used(chunk, payloads[chunk]) for chunk in owned] for owned in by_owner]
        received = circle.alltoall(
            [b"".join(part) for part in parts], f"to_owners.{self._keys[group[0]]}"
        )
        mine = by_owner[circle.place]
        messages = list(bundle.split(mine * circle.size, received))
        return [
            self._aggregator.reduce(self._keys[chunk], bundle.rows(chunk, messages[i :: len(mine)]))
            for i, chunk in enumerate(mine)
        ]

    def _bring_back(
        self, circle: Circle, group: Sequence[Chunk], reply: Sequence[NDArray]
    ) -> Iterator[Tuple[Chunk, NDArray]]:
        """The aggregates of all chunks of a group."""
        by_owner = self._by_owner(circle, group)
        mine = b"".join(
            bundle.used(c, payload) for c, payload in zip(by_owner[circle.place], reply)
        )
        everything = self._from_all(circle, mine, f"bring_back.{self._keys[group[0]]}")
        in_order = [chunk for owned in by_owner for chunk in owned]
        for chunk, message in zip(in_order, bundle.split(in_order, everything)):
            yield chunk, bundle.rows(chunk, [message]).reshape((-1,))

    def _bring_to_all(
        self, circle: Circle, group: Sequence[Chunk], payloads: Mapping[Chunk, NDArray]
    ) -> Iterator[Tuple[Chunk, NDArray]]:
        """All payloads of the chunks of a group."""
        mine = b"".join(bundle.used(chunk, payloads[chunk]) for chunk in group)
        everything = self._from_all(circle, mine, f"bring_to_all.{self._keys[group[0]]}")
        messages = list(bundle.split(list(group) * circle.size, everything))
        for i, chunk in enumerate(group):
            yield chunk, bundle.rows(chunk, messages[i :: len(group)])

    def _from_all(self, circle: Circle, mine: bytes, name: str) -> bytes:
        """What all of a circle have, by rank, also for workers who are not in it."""
        everything = circle.gather(mine, name) if circle.place >= 0 else b""
        return everything if circle is self._everybody else self._node.gather(everything, name)

    def _by_owner(self, circle: Circle, group: Sequence[Chunk]) -> List[List[Chunk]]:
        return [[c for c in group if self._owners[c] == place] for place in range(circle.size)]

    # Checkpoints: each worker's has what it carries over for the chunks that it owns

    def _keeps_aggregator(self, chunk: Chunk) -> bool:
        return self._keys[chunk] in self._aggregator

    def _aggregator_states(self, chunks: Sequence[Chunk]) -> Dict[Chunk, Dict[str, np.ndarray]]:
        return {chunk: self._aggregator.state(self._keys[chunk]) for chunk in chunks}

    def _load_aggregator_state(self, chunk: Chunk, state: Mapping[str, np.ndarray]) -> None:
        self._aggregator.load_state(self._keys[chunk], state)

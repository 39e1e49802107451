"""The backend over Horovod: workers only, each of which aggregates some of the chunks.

Compressed chunks travel in groups. The payloads of a chunk go to its owner, who aggregates them as
a server would, and everybody gets what all owners answered; or everybody gets all payloads. Values
that are summed as they are travel as grouped allreduces.

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
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import agreement, env, plan
from ...checkpoint import Place
from ...choice import Topology
from ...compression import CompressionParams
from ...launch.leaving import ending
from ...launch.patience import Patience
from ...launch.progress import Progress
from ...plan import Chunk, Slice
from ..channel import Channel, Sending
from ..exchange import CompressingKVStore
from ..gradient import Gradient, Gradients
from ..sparse import SparseChannel, summed
from . import archive, bundle, hvd
from .circle import Circle, Team, nodes_of
from .groups import Gathered, Group, TwoWay


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
    spreads_aggregators = True
    connected: ClassVar[Optional["GluonGCHorovod"]] = None
    """The one connection that a process can have."""

    def __init__(self) -> None:
        super().__init__()
        if self.connected is not None:
            raise RuntimeError("this process is connected to its Horovod already")
        self._hvd = hvd.load()
        env.prepare_horovod()
        # In each of its cycles Horovod asks all workers for new process sets, if there may be any.
        self._hvd.init(process_sets="dynamic" if env.several_on_some_nodes() else None)
        ending().concerns(self)  # after Horovod's own exit handler, to be asked first
        self.rank, self.num_workers = self._hvd.rank(), self._hvd.size()
        self._everybody = Circle(self._hvd, range(self.num_workers))
        nodes = nodes_of(self._hvd)
        (node,) = (node for node in nodes if self.rank in node)
        self.local_rank, self.local_size = node.index(self.rank), len(node)
        self._leader = node[0]
        self._number_of_node = nodes.index(node)
        self._flat = self._by_node = Team(self._everybody)
        if 1 < len(nodes) < self.num_workers:
            leaders = Circle(self._hvd, [ranks[0] for ranks in nodes])
            (mine,) = (c for c in [Circle(self._hvd, n) for n in nodes] if c.place >= 0)
            self._by_node = Team(leaders, mine)
        self._threads = env.server_threads()
        self._keys: Dict[Channel, int] = {}
        self._owner_of: Dict[Channel, int] = {}  # places in the channel's circle
        # Horovod refuses a name that is still at work: what is summed always is in the same array,
        # for which MXNet's engine ends one sum before it begins the next.
        self._summed: Dict[Channel, NDArray] = {}
        self._summed_in_node: Dict[Channel, NDArray] = {}
        self._groups: Dict[Tuple[Channel, ...], List[Group]] = {}  # of channels of one team
        self._broadcasts = itertools.count()
        self._progress = Progress()
        self._patience = Patience(f"worker {self.rank}", self._progress)
        GluonGCHorovod.connected = self
        self._agree({})

    def close(self) -> None:
        """Leave once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is not None:
            GluonGCHorovod.connected = None
            mx.nd.waitall()
            with self._progress.waiting():
                self._hvd.shutdown()
            self._patience.end()
            ending().concerns(None)

    def abandon(self, why: str) -> None:
        """Leave without the others, whom horovodrun ends once this process has ended."""
        if self.connected is self:
            GluonGCHorovod.connected = None
            self._patience.end()
            ending().abandoned()

    def topology(self) -> Optional[Topology]:
        return Topology(self._by_node.circle.size, servers=0) if self.num_workers > 1 else None

    # Set-up: every worker comes here with the same chunks

    def _agree(self, about: Mapping[str, Any]) -> None:
        hello = json.dumps(agreement.describe(self.rank, about)).encode() + b"\n"
        with self._progress.waiting():
            everybody = self._everybody.gather(hello, "hello").splitlines()
        problem = agreement.difference([json.loads(line) for line in everybody])
        if problem:
            raise RuntimeError(f"the cluster does not fit together: {problem}")

    def _open(self, channels: Sequence[Channel]) -> None:
        for team, inside in self._by_team(channels):
            for group in bundle.groups([channel for channel in inside if channel.aggregated]):
                loads = [channel.message_bytes for channel in group]
                self._owner_of.update(zip(group, plan.spread(loads, team.circle.size)))
        for channel in channels:
            self._progress.watch(0, channel.under_way)
            self._keys[channel] = len(self._keys)
            if self._hierarchical(channel.params):
                self._summed_in_node[channel] = mx.nd.zeros(channel.size, dtype=channel.dtype)
            if channel.aggregated:
                place, _ = self.place(channel.chunks[0])
                if self._owner_of[channel] == place and self._takes_part(channel):
                    self._aggregators[channel] = self._aggregator(channel)
            elif not channel.gathered:
                values = channel.message_bytes // np.dtype(channel.dtype).itemsize
                self._summed[channel] = mx.nd.zeros(values, dtype=channel.dtype)

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        for channel in channels:
            self._progress.watch(0, channel.under_way)

    def _hierarchical(self, params: Optional[CompressionParams]) -> bool:
        return params is not None and params.hierarchical and self._by_node is not self._flat

    def _team(self, channel: Channel) -> Team:
        """Those who exchange a message."""
        return self._by_node if self._hierarchical(channel.params) else self._flat

    def _by_team(self, channels: Sequence[Channel]) -> Iterator[Tuple[Team, List[Channel]]]:
        """The channels of each team."""
        for team in dict.fromkeys([self._flat, self._by_node]):
            yield team, [channel for channel in channels if self._team(channel) is team]

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        # The sum over a node is made in the host's memory.
        return super()._can_run_on_gpu(channel) and not self._hierarchical(channel.params)

    def _takes_part(self, channel: Channel) -> bool:
        return self._team(channel).circle.place >= 0

    def place(self, chunk: Chunk) -> Tuple[int, int]:
        if self._hierarchical(chunk.params):
            return self._number_of_node, self._by_node.circle.size
        return super().place(chunk)

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> Tuple[float, float]:
        return super().message_bytes(channel, done) if self._takes_part(channel) else (0, 0)

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype."""
        self._agree_to_broadcast(arrays, root_rank)
        for array, number in zip(arrays, self._broadcasts):
            host = array.as_in_context(mx.cpu())  # the array itself if it is there
            self._everybody.broadcast(host, root_rank, f"broadcast.{number}")
            if host is not array:
                host.copyto(array)

    # A step: all is queued on MXNet's engine, but for rows that travel uncompressed

    def _exchange(self, channels: Sequence[Channel], gradients: Gradients, priority: int) -> None:
        sent = self._all_encoded(channels, self._sending(gradients))
        received: Dict[Channel, NDArray] = {}
        groups: List[Group] = []
        for team, inside in self._by_team(channels):
            received.update(self._sum_in(team, inside, sent))
            groups += self._grouped(team, [channel for channel in inside if channel.framed])
        # Operators wait for MXNet's resources in the order in which they are queued.
        for group in groups:
            group.send(sent)
        for group in groups:
            group.answer()
        for group in groups:
            received.update(group.receive())
        for channel in channels:
            count = self._team(channel).circle.size if channel.gathered else 1
            channel.deliver([received[channel]], gradients, count)

    def _grouped(self, team: Team, channels: Sequence[Channel]) -> List[Group]:
        """The groups in which these travel, the same ones whenever these do together."""
        key = tuple(channels)
        if key not in self._groups:
            self._groups[key] = made = []
            number = len(self._groups)
            for part in bundle.groups([channel for channel in channels if channel.aggregated]):
                made.append(self._two_way(team, part, f"{number}.{len(made)}"))
            for part in bundle.groups([channel for channel in channels if channel.gathered]):
                made.append(Gathered(team, part, f"{number}.{len(made)}"))
        return self._groups[key]

    def _two_way(self, team: Team, channels: Sequence[Channel], name: str) -> TwoWay:
        return TwoWay(team, channels, self._owner_of, self._aggregators, self._threads, name)

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> Tuple[RowSparseNDArray, None]:
        ids, values = channel.sent.indices.asnumpy(), channel.sent.data.asnumpy()
        name = f"rows.{self.channels.index(channel)}"
        all_ids = self._everybody.gather(ids.tobytes(), f"{name}.ids")
        all_values = self._everybody.gather(values.tobytes(), f"{name}.values")
        return summed(channel, all_ids, all_values), None

    def _all_encoded(self, channels: Sequence[Channel], sending: Sending) -> Dict[Channel, NDArray]:
        """What is sent: of this worker's gradients, or of their sum over its node."""
        in_node = [channel for channel in channels if channel in self._summed_in_node]
        sums: Dict[Channel, NDArray] = {}
        for group in bundle.by_dtype(in_node):
            for channel in group:
                sums[channel] = channel.copy(sending, self._summed_in_node[channel])
            arrays = [sums[channel] for channel in group]
            self._by_node.node.sum_in_place(arrays, f"node.{self._keys[group[0]]}")
        return {
            channel: channel.encode(
                sending, values=sums.get(channel), out=self._summed.get(channel)
            )
            for channel in channels
        }

    def _sum_in(
        self, team: Team, channels: Sequence[Channel], sent: Mapping[Channel, NDArray]
    ) -> Dict[Channel, NDArray]:
        """The sums of what is summed as it is."""
        sums = {channel: sent[channel] for channel in channels if channel in self._summed}
        for group in bundle.by_dtype(list(sums)):
            if team.circle.place >= 0:
                arrays = [sums[channel] for channel in group]
                team.circle.sum_in_place(arrays, f"sum.{self._keys[group[0]]}")
        if team.node is not None:
            for channel, array in sums.items():
                team.node.broadcast(array, self._leader, f"summed.{self._keys[channel]}")
        return sums

    # Checkpoints: each worker's has what it carries over for the messages that it owns

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Place, np.ndarray]
    ) -> Mapping[Place, np.ndarray]:
        wanted: List[List[Slice]] = [[] for _ in range(self.num_workers)]
        for channel in channels:
            owner = self._team(channel).circle.ranks[self._owner_of[channel]]
            wanted[owner] += channel.slices
        parts = [archive.pack(archive.parts(arrays, pieces)) for pieces in wanted]
        return archive.unpack(self._everybody.alltoall(parts, "aggregators"))

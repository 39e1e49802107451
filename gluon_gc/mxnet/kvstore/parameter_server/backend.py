"""The backend over MXNet's unmodified parameter server (dist_sync).

A worker pushes its payload as one row of a row_sparse array. The row id is the worker's rank:

    worker 0  push row 0 --+
    worker 1  push row 1 --+--> server: the union of all rows --> aggregate --> row 0
    worker 2  push row 2 --+                                                      |
    all workers  pull row 0  <----------------------------------------------------+
"""

from __future__ import annotations

import itertools
import threading
from typing import (
    Any,
    Callable,
    Collection,
    Hashable,
    Iterator,
    Sequence,
)

import mxnet as mx
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import env
from ....auto.choice import Topology
from ....env import Cluster
from ....exchange import plan
from ....exchange.agreement import Message
from ....exchange.plan import Tensor
from ....launch.leaving import ending
from ....launch.scheduler import ps_lite
from ....launch.scheduler.lifeline import join
from ....log import logger
from ...exchange.channel import Channel
from ...exchange.channels import AnyChannel
from ...exchange.exchange import States
from ...exchange.gradient import Gradient, Job
from ...exchange.sparse import SparseChannel
from .. import archive
from ..one_machine.hierarchical import HierarchicalExchange
from .messages import Dense, OfMachine, Payloads, ServerMessage, SparseRows, SummedRows
from .pages import Pages, ServerStates
from .servers import Servers

_QUEUES = 4  # messages in flight to each server. With more, a pull would queue behind many pushes


class ParameterServer(HierarchicalExchange):
    """Exchanges compressed gradients through the parameter server of the DMLC variables."""

    type = "dist_sync"

    def __init__(self) -> None:
        super().__init__()
        ending().set_backend(self)
        cluster = env.cluster()
        self.rank = cluster.rank
        address = f"{cluster.root_uri}:{cluster.root_port}"
        waiting = (
            f"worker {self.rank} waits at {address} until all {cluster.total_workers} workers "
            f"and {cluster.num_server} servers are there"
        )
        notice = threading.Timer(30, logger.warning, [waiting])
        notice.daemon = True
        notice.start()
        self._lifeline = join(cluster, env.get("GLUON_GC_CONNECT_TIMEOUT"))
        notice.cancel()
        self._progress = self._lifeline.progress
        self._warn_of_raised_bound()
        with env.exported_for_ps_lite(self._lifeline.cluster), self._progress.waiting():
            self._kv = mx.kv.create("dist_sync")
        logger.info("worker %d has joined the cluster at %s", self.rank, address)
        self.num_workers = self._kv.num_workers
        self._messages: dict[Channel, ServerMessage] = {}
        self._machine = cluster.worker_id, cluster.num_worker
        self._sparse: dict[SparseChannel, SparseRows] = {}
        self._server_of: dict[AnyChannel, int] = {}
        # By `_kind`: for each withdrawn channel, its keys.
        self._unused: dict[Hashable, list[list[int]]] = {}
        self._states: ServerStates | None = None  # set when the first aggregator is declared
        ParameterServer.connected = self
        self._servers = Servers(self._kv, cluster.num_server, self._progress)
        self.agree("init")

    def _warn_of_raised_bound(self) -> None:
        """Warn if gluon_gc overrides the user's MXNET_KVSTORE_BIGARRAY_BOUND."""
        given, raised = env.get("MXNET_KVSTORE_BIGARRAY_BOUND"), env.BIGARRAY_BOUND
        if given < raised and self.rank == 0:
            logger.warning(
                "MXNET_KVSTORE_BIGARRAY_BOUND is raised from %d to %d while gluon_gc connects, "
                "because gluon_gc cuts arrays itself (BYTEPS_PARTITION_BYTES)",
                given,
                raised,
            )

    def close(self) -> None:
        if self.connected is None:
            return
        mx.nd.waitall()
        self._lifeline.leave()
        self._close_shared()
        ParameterServer.connected = None
        if env.get("PS_RESEND"):
            ending().stays(self._stay)
            return
        ps_lite.leave_alone(self._kv.handle)
        # MXNet ends ps-lite when the last reference to the KVStore is gone.
        del self._kv, self._messages, self._sparse, self._states, self._servers
        self._lifeline.close()
        ending().set_backend(None)

    def _stay(self) -> None:
        """Wait until all workers end. With PS_RESEND, ps-lite fails if a peer leaves earlier."""
        self._lifeline.stay()
        self._lifeline.close()

    def _abandon(self, why: str) -> None:
        self._lifeline.abandon(why)

    def topology(self) -> Topology:
        return Topology(self._machine[1], self._servers.count)

    # Set-up: collective calls, with the same channels on every worker

    def _on_machine(self) -> Cluster:
        return self._lifeline.cluster

    def _open(self, channels: Sequence[Channel]) -> None:
        queues = [
            itertools.cycle([mx.nd.zeros(1) for _ in range(_QUEUES)])
            for _ in range(self._servers.count)
        ]
        servers = plan.assign([channel.message_bytes for channel in channels], self._servers.count)
        keys, zeros, configured = [], [], []
        new_pages = []
        if self._states is None and any(channel.aggregated for channel in channels):
            numbers = range(self._servers.count)
            new_pages = [Pages(self._kv, self._servers.key(server)) for server in numbers]
            keys += [pages.key for pages in new_pages]
            zeros += [pages.first() for pages in new_pages]
            configured += [
                {"key": pages.key, "server": server, "pages": True}
                for server, pages in enumerate(new_pages)
            ]
        self._server_of.update(zip(channels, servers))
        self._open_shared(channels)
        for channel, server in zip(channels, servers):
            self._progress.watch(server, channel.under_way)
            (key,), is_new = self._keys_for(channel, 1)
            message = self._messages[channel] = self._message(channel, key, queues[server])
            if is_new:
                keys.append(key)
                zeros.append(message.first())
            if not isinstance(message, Dense):
                described = self._description(channel)
                configured.append({"key": message.key, "server": server, **described})
        self._servers.open(configured, keys, zeros)
        for pages in new_pages:  # a server gets its stored array in the first update of a key
            pages.push()
        if new_pages:
            mx.nd.waitall()
            self._states = ServerStates(new_pages, self._servers.command)

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        keys, first, configured = [], [], []
        for number, channel in enumerate(channels):
            server = (len(self._sparse) + number) % self._servers.count
            self._server_of[channel] = server
            own, is_new = self._keys_for(channel, 2)
            rows = self._sparse[channel] = SparseRows(self._kv, own, channel)
            if is_new:
                keys += own
                first += rows.first()
            configured += [{"key": key, "server": server, "gathered": True} for key in own]
            self._progress.watch(server, channel.under_way)
        if channels:
            self._servers.open(configured, keys, first)

    def _keep_earlier(self, channels: Sequence[Channel]) -> None:
        super()._keep_earlier(channels)
        self._tell_aggregators("keep_earlier", channels)

    def _take_back(self, channels: Sequence[Channel]) -> None:
        super()._take_back(channels)
        try:  # a server must not take an exchange back while it aggregates
            for channel in channels:
                channel.since(None)  # waits
        finally:
            self._tell_aggregators("take_back", channels)

    def _tell_aggregators(self, action: str, channels: Sequence[Channel]) -> None:
        """Let rank 0 send the servers a request. They carry it out before they aggregate again."""
        keys = [self._messages[channel].key for channel in channels if channel.aggregated]
        if keys and self.rank == 0:
            self._servers.command(action, {"keys": keys})

    def withdraw(self, names: Collection[str]) -> list[Tensor]:
        aggregated = [c for c in self.channels.of(names) if c in self._messages and c.aggregated]
        keys = self._keys(aggregated)
        tensors = super().withdraw(names)
        if keys and self.rank == 0:
            self._servers.command("forget", keys)
        return tensors

    def _forget(self, channel: AnyChannel) -> None:
        is_sparse = isinstance(channel, SparseChannel)
        keys = self._sparse.pop(channel).keys if is_sparse else [self._messages.pop(channel).key]
        self._unused.setdefault(self._kind(channel), []).append(keys)
        del self._server_of[channel]
        super()._forget(channel)

    def _keys_for(self, channel: AnyChannel, count: int) -> tuple[list[int], bool]:
        """Keys for a channel, and whether they are new: MXNet's server never frees one."""
        unused = self._unused.get(self._kind(channel))
        if unused:
            return unused.pop(), False
        return [self._servers.key(self._server_of[channel]) for _ in range(count)], True

    def _kind(self, channel: AnyChannel) -> Hashable:
        """The server of a channel, and all that shapes the arrays of its keys."""
        server = self._server_of[channel]
        if isinstance(channel, SparseChannel):
            return server, channel.shape
        layout = channel.coder.rows() if channel.framed else channel.message_bytes
        of_machine = channel in self._shared
        return server, of_machine, channel.aggregated, channel.gathered, channel.dtype, layout

    def _message(self, channel: Channel, key: int, queues: Iterator[NDArray]) -> ServerMessage:
        shared = self._shared.get(channel)
        kind = Payloads if channel.framed else SummedRows
        if shared is None:
            # MXNet's server may sum float64 in float32.
            if not channel.framed and channel.dtype != "float64":
                return Dense(self._kv, key, channel)
            sender = self.rank, self.num_workers
            return kind(self._kv, key, channel, queue=next(queues), sender=sender)
        queue = next(queues) if shared.owned else None
        return OfMachine(shared, kind(self._kv, key, channel, queue=queue, sender=self._machine))

    def _description(self, channel: Channel) -> dict[str, Any]:
        """The configuration that the server needs for a channel that travels in rows."""
        if channel.gathered:
            return {"gathered": True}
        if not channel.aggregated:
            return {"summed_bytes": channel.message_bytes, "dtype": channel.dtype}
        chunks = [
            {"size": chunk.size, "start": self._start(chunk, node=None)} for chunk in channel.chunks
        ]
        params = channel.params.aggregators.describe()
        return {"chunks": chunks, "params": params, "dtype": channel.dtype}

    def _compared(self, message: Message, call: str) -> Message:
        self._lifeline.next_exchange()
        return self._servers.compared(message, call)

    # A step

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        self._lifeline.next_exchange()
        messages = [self._messages[channel] for channel in channels]
        # Operators that encode have priority 0, so a message travels before more are encoded.
        priorities = range(priority + len(messages), priority, -1)
        for message, own in zip(messages, priorities):
            message.encode(job)
            if not message.holds:
                message.travel(own)
        for message, own in zip(messages, priorities):
            if message.holds:
                message.travel(own)
        for message in messages:
            message.deliver(job.gradients)

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> tuple[RowSparseNDArray, NDArray]:
        return self._sparse[channel].exchange(channel.listed(gradient), priority)

    # Checkpoints: rank 0 also saves the states of the servers' aggregators

    def keeps_aggregator(self, channel: Channel) -> bool:
        return self.rank == 0 and channel.aggregated

    def aggregator_states(self, channels: Sequence[Channel]) -> Iterator[States]:
        mx.nd.waitall()
        if self._states is None:
            return iter(())
        return self._states.fetch(self._keys(channels), self._layouts(channels))

    def load_aggregators(
        self, channels: Sequence[Channel], states_of: Callable[[Channel], States]
    ) -> None:
        if self._states is None:
            return
        on_servers = [
            map(states_of, [channel for channel in channels if self._server_of[channel] == number])
            for number in range(self._servers.count)
        ]
        given = on_servers if self.rank == 0 else None
        self._states.give(self._keys(channels), self._layouts(channels), given)

    def _keys(self, channels: Sequence[Channel]) -> list[int]:
        return [self._messages[channel].key for channel in channels]

    def _layouts(self, channels: Sequence[Channel]) -> list[dict[int, archive.Layouts]]:
        """For each server, the layouts of its aggregators' states for these channels, by key."""
        layouts: list[dict[int, archive.Layouts]] = [{} for _ in range(self._servers.count)]
        for channel in channels:
            params = channel.params.aggregators
            layouts[self._server_of[channel]][self._messages[channel].key] = [
                params.state_layout(chunk.size, channel.dtype) for chunk in channel.chunks
            ]
        return layouts

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        self._servers.broadcast(arrays, self.rank == root_rank)

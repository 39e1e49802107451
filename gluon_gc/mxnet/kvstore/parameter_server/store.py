"""The backend over MXNet's parameter server (dist_sync), unmodified.

A worker pushes its payload as the row of a row_sparse array whose id is its rank. The server's
union of the rows is all payloads side by side; row 0 of what it stores is the answer.
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import env, kernels, plan
from ....agreement import Message
from ....auto.choice import Topology
from ....env import Cluster
from ....launch import ps_lite
from ....launch.joining import join
from ....launch.leaving import ending
from ....log import logger
from ...channel import Channel
from ...exchange import States
from ...gradient import Gradient, Gradients
from ...sparse import SparseChannel
from .. import archive
from ..one_machine.hierarchical import HierarchicalKVStore
from . import control_messages, handshake
from .keys import KeyAllocator
from .pages import Pages
from .routes import Dense, OfMachine, Payloads, Route, SummedRows
from .rows import Rows
from .server_states import ServerStates
from .sparse_rows import SparseRows

_CONTROLLER = 0  # the command that MXNet's server hands to its controller
_LANES = 3  # messages under way to a server: a pull stands in line behind those that are pushed


@KVStoreBase.register
class GluonGCParameterServer(HierarchicalKVStore):
    """Compressed gradients through the parameter server that the DMLC variables describe.

    Raises
    ------
    ConnectionError
        No scheduler listens at its address within GLUON_GC_CONNECT_TIMEOUT.
    RuntimeError
        A node is not gluon_gc's, two nodes are the same, or workers and servers differ in version
        or settings; or this process is connected already.
    """

    type = "dist_sync"
    connected: ClassVar[Optional["GluonGCParameterServer"]] = None
    """The one connection that a process can have."""

    def __init__(self) -> None:
        super().__init__()
        if self.connected is not None:
            raise RuntimeError("this process is connected to its parameter server already")
        ending().concerns(self)
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
        self._row = self._kv.rank  # ps-lite's rank, by which the server sorts the rows
        self._servers = cluster.num_server
        self._allocator = KeyAllocator(self._servers)
        self._routes: Dict[Channel, Route] = {}
        self._machine = cluster.worker_id, cluster.num_worker
        self._sparse: Dict[SparseChannel, SparseRows] = {}
        self._server_of: Dict[Channel, int] = {}
        self._states: Optional[ServerStates] = None  # once there is an aggregator
        GluonGCParameterServer.connected = self
        keys = [self._allocator.key(server) for server in range(self._servers)]
        self._greetings = [Rows(self._kv, key, control_messages.ROWS) for key in keys]
        self._configure([])
        self._init(keys, [greeting.first() for greeting in self._greetings])
        self.agree("init")

    def _warn_of_raised_bound(self) -> None:
        """Say that MXNet is to spread no array over servers, though the user wants it."""
        given, raised = env.get("MXNET_KVSTORE_BIGARRAY_BOUND"), env.BIGARRAY_BOUND
        if given < raised and self.rank == 0:
            logger.warning(
                "MXNET_KVSTORE_BIGARRAY_BOUND is raised from %d to %d while gluon_gc connects: it "
                "cuts arrays by itself (BYTEPS_PARTITION_BYTES)",
                given,
                raised,
            )

    def close(self) -> None:
        """Leave the cluster once all workers come here; nothing can be exchanged afterwards."""
        if self.connected is None:
            return
        mx.nd.waitall()
        self._lifeline.leave()
        self._close_pool()
        GluonGCParameterServer.connected = None
        if env.get("PS_RESEND"):
            ending().stays(self._stay)
            return
        ps_lite.leave_alone(self._kv.handle)
        # ps-lite ends once nothing refers to it.
        del self._kv, self._routes, self._sparse, self._states, self._greetings
        self._lifeline.close()
        ending().concerns(None)

    def _stay(self) -> None:
        """Remain until all workers end: ps-lite fails where what it sends is not acknowledged."""
        self._lifeline.stay()
        self._lifeline.close()

    def abandon(self, why: str) -> None:
        """Leave the cluster at once; all others end, and say why."""
        if self.connected is self:
            self._lifeline.abandon(why)
            GluonGCParameterServer.connected = None
            ending().abandoned()

    def topology(self) -> Topology:
        return Topology(self._machine[1], self._servers)

    # Set-up: every worker comes here with the same chunks

    def _on_machine(self) -> Cluster:
        return self._lifeline.cluster

    def _open(self, channels: Sequence[Channel]) -> None:
        lanes = [
            itertools.cycle([mx.nd.zeros(1) for _ in range(_LANES)]) for _ in range(self._servers)
        ]
        servers = plan.spread([channel.message_bytes for channel in channels], self._servers)
        keys, zeros, configured = [], [], []
        new_pages = []
        if self._states is None and any(channel.aggregated for channel in channels):
            numbers = range(self._servers)
            new_pages = [Pages(self._kv, self._allocator.key(server)) for server in numbers]
            keys += [pages.key for pages in new_pages]
            zeros += [pages.first() for pages in new_pages]
            configured += [
                {"key": pages.key, "server": server, "pages": True}
                for server, pages in enumerate(new_pages)
            ]
        self._server_of.update(zip(channels, servers))
        self._open_pool(channels)
        for channel, server in zip(channels, servers):
            self._progress.watch(server, channel.under_way)
            route = self._routes[channel] = self._route(channel, server, lanes[server])
            keys.append(route.key)
            zeros.append(route.first)
            if not isinstance(route, Dense):
                described = self._description(channel)
                configured.append({"key": route.key, "server": server, **described})
        self._configure(configured)
        self._init(keys, zeros)
        for pages in new_pages:  # a server sees what it has stored when somebody pushes
            pages.push()
        if new_pages:
            mx.nd.waitall()
            self._states = ServerStates(new_pages, self._command)

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        keys, first, configured = [], [], []
        for number, channel in enumerate(channels):
            server = (len(self._sparse) + number) % self._servers
            own = self._allocator.key(server), self._allocator.key(server)
            rows = self._sparse[channel] = SparseRows(self._kv, own, channel)
            keys += rows.keys
            first += rows.first()
            configured += [{"key": key, "server": server, "gathered": True} for key in own]
            self._progress.watch(server, channel.under_way)
        if keys:
            self._configure(configured)
            self._init(keys, first)

    def _forget(self, channel: Channel) -> None:
        super()._forget(channel)
        self._routes.pop(channel, None)
        self._server_of.pop(channel, None)

    def _route(self, channel: Channel, server: int, lanes: Iterator[NDArray]) -> Route:
        """How the messages of a channel travel to a server and back."""
        key, pooled = self._allocator.key(server), self._pooled.get(channel)
        if pooled is None:
            if channel.framed:
                return Payloads(self._kv, key, channel, lane=next(lanes))
            if channel.dtype == "float64":  # MXNet's server may sum it in float32
                return SummedRows(self._kv, key, channel, lane=next(lanes))
            return Dense(self._kv, key, channel)
        kind = Payloads if channel.framed else SummedRows
        lane = next(lanes) if pooled.owned else None
        return OfMachine(pooled, kind(self._kv, key, channel, lane=lane, place=self._machine))

    def _description(self, channel: Channel) -> Dict[str, Any]:
        """What the server must know of a channel in rows."""
        if channel.gathered:
            return {"gathered": True}
        if not channel.aggregated:
            return {"summed_bytes": channel.message_bytes, "dtype": channel.dtype}
        chunks = [
            {"size": chunk.size, "start": self._start(chunk, node=None)} for chunk in channel.chunks
        ]
        params = channel.params.aggregators.describe()
        return {"chunks": chunks, "params": params, "dtype": channel.dtype}

    def _init(self, keys: Sequence[int], first: Sequence[NDArray]) -> None:
        """What the servers store first; returns when all workers have come here."""
        if keys:
            with self._progress.waiting():
                self._kv.init(keys, first)

    def _configure(self, keys: List[Dict[str, Any]]) -> None:
        if self._row == 0:
            self._command("configure", keys)

    def _command(self, action: str, request: Any) -> None:
        """Ask all servers; returns when they have done it."""
        body = json.dumps({"gluon_gc": {action: request}})
        self._kv._send_command_to_servers(_CONTROLLER, body)

    def _compared(self, message: Message, call: str) -> Message:
        """The answer of all servers, which only gluon_gc's give."""
        self._lifeline.next_exchange()
        packed = handshake.pack(message)
        with self._progress.waiting(call):
            answers = [greeting.exchange([packed]) for greeting in self._greetings]
            unpacked = [handshake.unpack(answer) for (answer,) in answers]
            self._kv._barrier()  # from here on, rank 0 may have servers answer it something else
        return next(filter(None, unpacked), {})

    # What travels

    def _exchange(self, channels: Sequence[Channel], gradients: Gradients, priority: int) -> None:
        self._lifeline.next_exchange()
        sending = self._sending(gradients)
        routes = [self._routes[channel] for channel in channels]
        # What is made travels before more is made, which MXNet's engine does with priority 0.
        priorities = range(priority + len(routes), priority, -1)
        for route, own in zip(routes, priorities):
            route.encode(sending)
            if not route.holds:
                route.travel(own)
        for route, own in zip(routes, priorities):
            if route.holds:
                route.travel(own)
        for route in routes:
            route.deliver(gradients)

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> Tuple[RowSparseNDArray, NDArray]:
        return self._sparse[channel].exchange(channel.listed(gradient), priority)

    # Checkpoints: rank 0's has what the servers carry over as well

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
            for number in range(self._servers)
        ]
        given = on_servers if self.rank == 0 else None
        self._states.give(self._keys(channels), self._layouts(channels), given)

    def _keys(self, channels: Sequence[Channel]) -> List[int]:
        return [self._routes[channel].key for channel in channels]

    def _layouts(self, channels: Sequence[Channel]) -> List[Dict[int, archive.Layouts]]:
        """What each server carries over for these channels, by key."""
        layouts: List[Dict[int, archive.Layouts]] = [{} for _ in range(self._servers)]
        for channel in channels:
            params = channel.params.aggregators
            layouts[self._server_of[channel]][self._routes[channel].key] = [
                params.state_layout(chunk.size, channel.dtype) for chunk in channel.chunks
            ]
        return layouts

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Overwrite arrays with those of the worker of rank `root_rank`, bit for bit, any dtype.

        The bytes travel framed as floats; everybody else adds zeros to them.
        """
        host = [array.asnumpy() for array in arrays]
        data = np.frombuffer(b"".join(array.tobytes() for array in host), np.uint8)
        words = kernels.frame(data).view(np.float32)
        most = max(1, env.get("BYTEPS_PARTITION_BYTES") // 4)
        lane = min(most, -(-words.size // self._servers))
        keys = [self._allocator.key(server) for server in range(self._servers)]
        buffers = [mx.nd.zeros(lane) for _ in keys]
        self._init(keys, buffers)
        received = np.empty_like(words)
        round_words = lane * len(keys)
        for start in range(0, words.size, round_words):
            for key, buffer, begin in zip(keys, buffers, range(start, start + round_words, lane)):
                part = words[begin : begin + lane] if self.rank == root_rank else words[:0]
                buffer[:] = np.pad(part, (0, lane - part.size))
                self._kv.pushpull(key, buffer, out=buffer)
            with self._progress.waiting():
                answers = np.concatenate([buffer.asnumpy() for buffer in buffers])
            part = received[start : start + round_words]
            part[:] = answers[: part.size]
        data = kernels.unframe(received.view(np.uint32), data.size)
        begin = 0
        for array, old in zip(arrays, host):
            new = data[begin : begin + old.nbytes].view(old.dtype).reshape(old.shape)
            array[:] = mx.nd.array(new, dtype=old.dtype)
            begin += old.nbytes

"""The backend over Horovod. There are no servers: each worker aggregates some of the messages.

A message travels in one of three ways, grouped with others:

* two-way: an alltoall brings the payloads to the message's owner, which aggregates them as a
  server does. An allgather brings the owners' answers to all workers.
* gather: an allgather brings all payloads to all workers.
* uncompressed: a grouped allreduce sums the values.

Hierarchical messages are first summed in memory that the workers of a node share. One worker of
the node owns such a message. It exchanges the sum with the workers of its local rank on the other
nodes.
"""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from typing import Iterable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import env
from ....auto.choice import Topology
from ....env import Cluster
from ....exchange import agreement, plan
from ....exchange.agreement import Message
from ....exchange.plan import Slice
from ....launch.leaving import ending
from ....launch.scheduler.stalls import Progress, StallWatch
from ....state import Key
from ...exchange.channel import Channel
from ...exchange.gradient import Gradient, Job
from ...exchange.sparse import SparseChannel, summed
from .. import archive
from ..one_machine.hierarchical import HierarchicalExchange
from .message_groups import Gathered, Group, TwoWay, by_dtype, in_groups, numbered
from .process_set import ProcessSet, load, nodes_of


class Horovod(HierarchicalExchange):
    """Exchanges compressed gradients through Horovod, in a job of horovodrun or mpirun."""

    type = "horovod"
    assigns_aggregators = True

    def __init__(self) -> None:
        super().__init__()
        self._hvd = load()
        env.prepare_horovod()
        # If process sets are dynamic, Horovod asks all workers for new ones in each cycle.
        self._hvd.init(process_sets="dynamic" if env.several_on_some_nodes() else None)
        # After Horovod's exit handler is registered, so that ours runs first.
        ending().set_backend(self)
        self.rank, self.num_workers = self._hvd.rank(), self._hvd.size()
        self._everybody = ProcessSet(self._hvd, range(self.num_workers))
        nodes = nodes_of(self._hvd)
        (node,) = (node for node in nodes if self.rank in node)
        self.local_rank, self.local_size = node.index(self.rank), len(node)
        self._machine = nodes.index(node), len(nodes)
        self._across: list[ProcessSet] = []  # for each local rank, its workers on all nodes
        if 1 < len(nodes) < self.num_workers:
            self._across = [ProcessSet(self._hvd, ranks) for ranks in zip(*nodes)]
        self._threads = env.server_threads()
        self._keys: dict[Channel, int] = {}
        self._new_keys = itertools.count()
        self._owner_of: dict[Channel, int] = {}  # the owner's rank in the message's process set
        # Horovod refuses a name that is still in use. Each channel has one array for its sums, so
        # MXNet's engine finishes one sum before it begins the next.
        self._summed: dict[Channel, NDArray] = {}
        sets = (self._everybody, *self._across)
        self._groups = {each: numbered(partial(self._new_groups, each)) for each in sets}
        self._broadcasts = itertools.count()
        self._progress = Progress()
        self._stall_watch = StallWatch(f"worker {self.rank}", self._progress)
        Horovod.connected = self
        self.agree("init")

    def close(self) -> None:
        if self.connected is not None:
            Horovod.connected = None
            mx.nd.waitall()
            self._close_shared()
            with self._progress.waiting():
                self._hvd.shutdown()
            self._stall_watch.end()
            ending().set_backend(None)

    def _abandon(self, why: str) -> None:
        # horovodrun ends the other workers after this process has ended.
        self._stall_watch.end()

    def topology(self) -> Topology | None:
        _, nodes = self._machine
        machines = nodes if self._shares_machine() else self.num_workers
        return Topology(machines, servers=0) if machines > 1 else None

    # Set-up: collective calls, with the same channels on every worker

    def _compared(self, message: Message, call: str) -> Message:
        line = json.dumps(message).encode() + b"\n"
        with self._progress.waiting(call):
            lines = self._everybody.gather(line, "hello").splitlines()
        return agreement.compare([json.loads(line) for line in lines])

    def _open(self, channels: Sequence[Channel]) -> None:
        self._open_shared(channels)
        for process_set, inside in self._by_process_set(channels):
            for group in in_groups([channel for channel in inside if channel.aggregated]):
                loads = [channel.message_bytes for channel in group]
                self._owner_of.update(zip(group, plan.assign(loads, process_set.size)))
        for channel in channels:
            self._progress.watch(0, channel.under_way)
            self._keys[channel] = next(self._new_keys)
            process_set = self._process_set(channel)
            if channel.aggregated:
                if self._owner_of[channel] == process_set.rank:
                    self._aggregators[channel] = self._aggregator(channel)
            elif not channel.gathered and process_set.rank >= 0:
                values = channel.message_bytes // np.dtype(channel.dtype).itemsize
                self._summed[channel] = mx.nd.zeros(values, dtype=channel.dtype)

    def _open_rows(self, channels: Sequence[SparseChannel]) -> None:
        for channel in channels:
            self._progress.watch(0, channel.under_way)

    def _forget(self, channel: Channel) -> None:
        super()._forget(channel)
        self._keys.pop(channel, None)
        self._owner_of.pop(channel, None)
        self._summed.pop(channel, None)
        for groups in self._groups.values():
            groups.cache_clear()

    def _shares_machine(self) -> bool:
        return bool(self._across)

    def _on_machine(self) -> Cluster:
        name, (number, nodes) = self.bytes_of_root(os.urandom(16)).hex(), self._machine
        worker = dict(worker_id=number, local_rank=self.local_rank, local_size=self.local_size)
        return Cluster("worker", name, root_port=0, num_worker=nodes, num_server=1, **worker)

    def _process_set(self, channel: Channel) -> ProcessSet:
        if channel in self._shared:
            return self._across[self._shared[channel].owner]
        return self._everybody

    def _by_process_set(
        self, channels: Iterable[Channel]
    ) -> Iterator[tuple[ProcessSet, list[Channel]]]:
        for process_set in (self._everybody, *self._across):
            inside = [c for c in channels if self._process_set(c) is process_set]
            yield process_set, inside

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        for array, number in zip(arrays, self._broadcasts):
            host = array.as_in_context(mx.cpu())  # no copy if the array is on the CPU
            self._everybody.broadcast(host, root_rank, f"broadcast.{number}")
            if host is not array:
                host.copyto(array)

    # A step: everything is queued on MXNet's engine, except uncompressed row-sparse gradients

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        sent = self._all_encoded(channels, job)
        received: dict[Channel, NDArray] = {}
        groups: list[Group] = []
        for process_set, inside in self._by_process_set(sent):
            received.update(self._sum_in(process_set, inside, sent))
            groups += self._groups[process_set](tuple(c for c in inside if c.framed))
        # MXNet hands out its resources in the order of the queue. So all groups send before any
        # queues an operator that waits for a received message.
        for group in groups:
            group.send(sent)
        for group in groups:
            group.answer()
        for group in groups:
            received.update(group.receive())
        for channel, message in received.items():
            if channel in self._shared:
                self._shared[channel].answer(message.reshape(-1).copyto)
        for channel in channels:
            if channel in self._shared:
                self._shared[channel].deliver(job.gradients)
            else:
                count = self.num_workers if channel.gathered else 1
                channel.deliver([received[channel]], job.gradients, count)

    def _new_groups(
        self, process_set: ProcessSet, channels: tuple[Channel, ...], number: int
    ) -> list[Group]:
        """The groups in which these channels travel together."""
        groups: list[Group] = []
        owned = self._owner_of, self._aggregators, self._threads
        for part in in_groups([channel for channel in channels if channel.aggregated]):
            groups.append(TwoWay(process_set, part, f"{number}.{len(groups)}", *owned))
        for part in in_groups([channel for channel in channels if channel.gathered]):
            groups.append(Gathered(process_set, part, f"{number}.{len(groups)}"))
        return groups

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> tuple[RowSparseNDArray, None]:
        ids, values = channel.sent.indices.asnumpy(), channel.sent.data.asnumpy()
        name = f"rows.{channel.tensor}"
        all_ids = self._everybody.gather(ids.tobytes(), f"{name}.ids")
        all_values = self._everybody.gather(values.tobytes(), f"{name}.values")
        return summed(channel, all_ids, all_values), None

    def _all_encoded(self, channels: Sequence[Channel], job: Job) -> dict[Channel, NDArray]:
        """The messages that this worker sends: of its gradients, or of their sums over its node."""
        sent: dict[Channel, NDArray] = {}
        for channel in channels:
            shared, total = self._shared.get(channel), None
            if shared is not None:
                shared.contribute(job)
                if not shared.owned:
                    continue
                total = shared.total()
            sent[channel] = channel.encode(job, total, out=self._summed.get(channel))
        return sent

    def _sum_in(
        self, process_set: ProcessSet, channels: Sequence[Channel], sent: Mapping[Channel, NDArray]
    ) -> dict[Channel, NDArray]:
        """Queue the allreduces of uncompressed values. Returns the arrays with the sums."""
        sums = {channel: sent[channel] for channel in channels if channel in self._summed}
        for group in by_dtype(list(sums)):
            arrays = [sums[channel] for channel in group]
            process_set.sum_in_place(arrays, f"sum.{self._keys[group[0]]}")
        return sums

    # Checkpoints: each worker saves the aggregator states of the messages that it owns

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Key, np.ndarray]
    ) -> Mapping[Key, np.ndarray]:
        wanted: list[list[Slice]] = [[] for _ in range(self.num_workers)]
        for channel in channels:
            owner = self._process_set(channel).ranks[self._owner_of[channel]]
            wanted[owner] += channel.slices
        parts = [archive.pack(archive.parts(arrays, pieces)) for pieces in wanted]
        return archive.unpack(self._everybody.alltoall(parts, "aggregators"))

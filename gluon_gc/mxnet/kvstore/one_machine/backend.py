"""The backend for the workers of one machine.

They sum gradients in shared memory, and need no server and no scheduler.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import env
from ....exchange import agreement
from ....exchange.agreement import Message
from ....exchange.plan import Chunk
from ....launch.leaving import ending
from ....launch.machine import Machine, Neighbours
from ....launch.scheduler.stalls import Progress, StallWatch
from ....state import Key
from ...exchange.channel import Channel
from ...exchange.gradient import Gradient, Job
from ...exchange.sparse import SparseChannel, summed
from .. import archive
from .hierarchical import HierarchicalExchange
from .shared_memory import SharedMemory


class OneMachine(HierarchicalExchange):
    """Sums the gradients of one machine's workers in shared memory.

    The sum then goes through the steps of one worker with one server, so the numbers are the same.
    """

    type = "machine"

    def __init__(self) -> None:
        super().__init__()
        ending().set_backend(self)
        self.rank, self.num_workers = self.local_rank, self.local_size
        self._progress = Progress()
        with self._progress.waiting():
            self._workers = Machine(env.machine(), env.get("GLUON_GC_CONNECT_TIMEOUT"))
            self._neighbours = Neighbours(self._workers)
            self._memory = SharedMemory(self._workers)
        self._stall_watch = StallWatch(f"worker {self.rank}", self._progress)
        OneMachine.connected = self
        self.agree("init")

    def close(self) -> None:
        if self.connected is None:
            return
        mx.nd.waitall()
        OneMachine.connected = None
        with self._progress.waiting():
            self._neighbours.leave()
        self._stall_watch.end()
        self._close_shared()
        ending().set_backend(None)

    def _abandon(self, why: str) -> None:
        self._neighbours.abandon(why)

    @contextmanager
    def _waiting(self, call: str = "") -> Iterator[None]:
        with super()._waiting(call), self._neighbours.noticing_ends():
            yield

    def _gather(self, data: bytes, call: str = "") -> Sequence[bytes]:
        with self._waiting(call):
            return self._workers.gather(data)

    def _compared(self, message: Message, call: str) -> Message:
        self._neighbours.next_exchange()
        messages = self._gather(json.dumps(message).encode(), call)
        return agreement.compare([json.loads(text) for text in messages])

    def _shares(self, channel: Channel) -> bool:
        return not channel.in_rows

    def _open(self, channels: Sequence[Channel]) -> None:
        aggregated = [channel for channel in channels if channel.aggregated and not channel.in_rows]
        self._aggregators.update((channel, self._aggregator(channel)) for channel in aggregated)
        self._open_shared(channels)
        for channel in channels:
            self._progress.watch(0, channel.under_way)

    def sender(self, chunk: Chunk) -> tuple[int, int]:
        # All workers together make one payload, but each one makes a payload of its own rows.
        return (self.rank, self.num_workers) if chunk.rows else self._machine

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> tuple[float, float]:
        return 0, 0

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        return False  # the workers sum in host memory

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        self._neighbours.next_exchange()
        in_memory = [channel for channel in channels if channel in self._shared]
        for channel in in_memory:
            shared = self._shared[channel]
            shared.contribute(job)
            if shared.owned:
                message = channel.encode(job, shared.total())
                if channel.aggregated:
                    message = self._aggregators[channel].aggregate(message, count=1)
                shared.answer(message.copyto)
        for channel in in_memory:
            self._shared[channel].deliver(job.gradients)
        for channel in channels:
            if channel.in_rows:
                payloads = self._payloads(channel, channel.encode(job))
                channel.deliver([payloads], job.gradients, self.num_workers)

    def _payloads(self, channel: Channel, message: NDArray) -> NDArray:
        """The payloads of all workers' rows, side by side. Only bytes in use travel."""
        own, (payload,) = message.asnumpy(), channel.coder.codecs
        gathered = self._gather(own[: payload.used(own)].tobytes())
        padded = b"".join(data.ljust(payload.payload_bytes, b"\0") for data in gathered)
        return mx.nd.array(np.frombuffer(padded, np.uint8), dtype="uint8")

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> tuple[RowSparseNDArray, None]:
        ids, values = channel.sent.indices.asnumpy(), channel.sent.data.asnumpy()
        of_all = (b"".join(self._gather(array.tobytes())) for array in (ids, values))
        return summed(channel, *of_all), None

    # Checkpoints: rank 0 saves the states of all aggregators, which are in shared memory

    def keeps_aggregator(self, channel: Channel) -> bool:
        return self.rank == 0 and channel.aggregated

    def share_aggregators(
        self, channels: Sequence[Channel], arrays: Mapping[Key, np.ndarray]
    ) -> Mapping[Key, np.ndarray]:
        # All workers write the same states. Each one also needs the aggregators' random streams.
        return archive.unpack(b"".join(self._gather(archive.pack(arrays))))

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        for array in arrays:
            own = array.asnumpy()
            data = self._gather(own.tobytes() if self.rank == root_rank else b"")[root_rank]
            root_array = np.frombuffer(data, own.dtype).reshape(own.shape)
            array[:] = mx.nd.array(root_array, dtype=own.dtype)

"""Messages to MXNet's server and back, one class for each kind."""

from __future__ import annotations

from typing import Any, Union

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ...engine import operators, order
from ...engine.operators import MessageRows
from ...exchange.channel import Channel
from ...exchange.gradient import Gradients, Job
from ...exchange.sparse import SparseChannel
from ..one_machine.shared_memory import SharedMessage


class Rows:
    """The worker's end of a key, for messages in rows of a row_sparse array.

    The array has a block of rows for each sender, and the server's union of all pushes is all
    messages. It writes its answer from row 0 on. A server counts the pushes of a key, not their
    senders. So one exchange must end before the next begins. MXNet's engine ensures that, because a
    key always uses the same arrays. Exchanges in the same `queue` also run one after the other.
    """

    def __init__(
        self,
        kv: KVStore,
        key: int,
        layout: MessageRows,
        queue: NDArray | None = None,
        sender: tuple[int, int] | None = None,  # its number, and how many senders there are
    ) -> None:
        self._kv, self.key, self._layout, self._queue = kv, key, layout, queue
        self._sender, self._senders = sender or (kv.rank, kv.num_workers)
        shape = (self._senders * layout.count, layout.row_words)
        self.sent = mx.nd.sparse.zeros("row_sparse", shape)
        pulls = 1 if layout.count == 1 else 2
        self._pulled = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(pulls)]
        self._row0 = mx.nd.zeros(1, dtype="int64")
        self._first_rows = mx.nd.arange(0, shape[0], layout.count, dtype="int64")

    def first(self) -> RowSparseNDArray:
        return _zeros_in_all_rows(self.sent.shape)

    def push(self, priority: int = 0) -> None:
        """Push `sent`, after the previous exchange of the queue has ended."""
        if self._queue is not None:
            order.join(self._queue, self.sent)
        self._kv.push(self.key, self.sent, priority)

    def pull(self, answers: int = 1, priority: int = 0) -> list[RowSparseNDArray]:
        """Pull the server's first message, or one from each sender, in one or two arrays."""
        wanted = self._row0 if answers == 1 else self._first_rows
        for array in self._pulled:  # the first row of a message holds the number of further rows
            self._kv.row_sparse_pull(self.key, out=array, row_ids=wanted, priority=priority)
            if array is not self._pulled[-1]:
                wanted = operators.rows_left(array, self._layout, answers)
        if self._queue is not None:
            order.join(self._pulled[-1], self._queue)
        return self._pulled

    def exchange(self, part: NDArray, priority: int = 0) -> NDArray:
        """Push a message of one part (uint8), and pull the answer, of shape (1, bytes)."""
        operators.frame([part], self._layout, self._sender, self._senders, out=self.sent)
        self.push(priority)
        (answer,) = operators.unframe(self.pull(1, priority), self._layout)
        return answer


def _zeros_in_all_rows(shape: tuple[int, int]) -> RowSparseNDArray:
    """The initial value of a key. It has all rows, the only ones that can be pulled."""
    return mx.nd.sparse.row_sparse_array((mx.nd.zeros(shape), np.arange(shape[0])), shape)


# A message has `encode`, `travel` (push it, pull the answer) and `deliver`. All queue work on
# MXNet's engine and return at once. If a message `holds`, its `travel` queues operators that read
# the answer. Such an operator holds a resource of MXNet while it waits. So it must be queued after
# the operators that encode messages.


class Payloads(Rows):
    """Payloads, which gluon_gc's server aggregates or stores."""

    def __init__(self, kv: KVStore, key: int, channel: Channel, **of_rows: Any) -> None:
        layout = channel.coder.rows()
        super().__init__(kv, key, layout, **of_rows)
        self._channel, self.holds = channel, layout.count > 1
        self._count = self._senders if channel.gathered else 1
        self._sent_framing = layout.framing_at(self._sender, self._senders)
        self._framing = layout.framing()
        self._received: list[NDArray] = []

    def encode(self, job: Job, values: NDArray | None = None) -> None:
        self._channel.encode(job, values, self._sent_framing, self.sent)

    def travel(self, priority: int) -> None:
        self.push(priority)
        self._received = self.pull(self._count, priority)

    def deliver(self, gradients: Gradients) -> None:
        self._channel.deliver(self._received, gradients, self._count, self._framing)

    def copy(self, to: NDArray) -> None:
        """Copy the answer to this array, in the form that `Channel.deliver` takes."""
        self._channel.coder.unframed(self._received, to, self._framing)


class SummedRows(Rows):
    """Values as bytes, which gluon_gc's server sums."""

    holds = True

    def __init__(self, kv: KVStore, key: int, channel: Channel, **of_rows: Any) -> None:
        super().__init__(kv, key, MessageRows(((channel.message_bytes, None),)), **of_rows)
        self._channel = channel
        self._values: NDArray | None = None

    def encode(self, job: Job, values: NDArray | None = None) -> None:
        self._values = self._channel.encode(job, values)

    def travel(self, priority: int) -> None:
        answer = self.exchange(operators.as_bytes(self._values), priority)
        self._values = operators.sum_rows(answer, self._channel.dtype)

    def deliver(self, gradients: Gradients) -> None:
        self._channel.deliver([self._values], gradients)

    def copy(self, to: NDArray) -> None:
        self._values.copyto(to)


class Dense:
    """Dense values, which MXNet's server sums, in one array as in `Rows`."""

    holds = False

    def __init__(self, kv: KVStore, key: int, channel: Channel) -> None:
        self._kv, self.key, self._channel = kv, key, channel
        values = channel.message_bytes // np.dtype(channel.dtype).itemsize
        self._array = mx.nd.zeros(values, dtype=channel.dtype)

    def first(self) -> NDArray:
        return mx.nd.zeros_like(self._array)

    def encode(self, job: Job) -> None:
        self._channel.encode(job, out=self._array)

    def travel(self, priority: int) -> None:
        self._kv.pushpull(self.key, self._array, out=self._array, priority=priority)

    def deliver(self, gradients: Gradients) -> None:
        self._channel.deliver([self._array], gradients)


class OfMachine:
    """A message of a machine's workers: its owner sends the sum, and the others no rows."""

    def __init__(self, shared: SharedMessage, message: Payloads | SummedRows) -> None:
        self._shared, self._message = shared, message
        self.key, self.first = message.key, message.first
        self.holds = shared.owned and message.holds

    def encode(self, job: Job) -> None:
        self._shared.contribute(job)
        if self._shared.owned:
            self._message.encode(job, self._shared.total())

    def travel(self, priority: int) -> None:
        if self._shared.owned:
            self._message.travel(priority)
        else:
            self._message.push(priority)

    def deliver(self, gradients: Gradients) -> None:
        if self._shared.owned:
            self._shared.answer(self._message.copy)
        self._shared.deliver(gradients, also=[self._message.sent])


ServerMessage = Union[Payloads, SummedRows, Dense, OfMachine]


class SparseRows:
    """A row-sparse gradient. One key carries lists of row numbers, one the rows."""

    def __init__(self, kv: KVStore, keys: list[int], channel: SparseChannel) -> None:
        self._kv, self.keys, self._channel = kv, keys, channel
        self._lists = Rows(kv, keys[0], channel.layout)
        self._pulled = mx.nd.sparse.zeros("row_sparse", channel.shape)

    def first(self) -> list[RowSparseNDArray]:
        return [self._lists.first(), _zeros_in_all_rows(self._channel.shape)]

    def exchange(self, listed: NDArray, priority: int) -> tuple[RowSparseNDArray, NDArray]:
        """Push `channel.sent` and the list of its rows. Returns the sums and all workers' lists."""
        kv, workers, layout = self._kv, self._kv.num_workers, self._channel.layout
        operators.frame([listed], layout, kv.rank, workers, out=self._lists.sent)
        self._lists.push(priority)
        kv.push(self.keys[1], self._channel.sent, priority)
        (lists,) = operators.unframe(self._lists.pull(workers, priority), layout, workers)
        wanted = operators.call("rows_of_any", (lists,))
        kv.row_sparse_pull(self.keys[1], out=self._pulled, row_ids=wanted, priority=priority)
        return self._pulled, lists

"""The routes of a message through MXNet's server, one class for each kind of message."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from ...engine import operators
from ...engine.operators import MessageRows
from ...exchange.channel import Channel
from ...exchange.gradient import Gradients
from ...exchange.job import Job
from ..one_machine.shared_memory import SharedMessage
from .rows import Rows


class Route:
    """The route of one channel. All methods queue work on MXNet's engine and return at once.

    Attributes
    ----------
    key : int
        The key of the KVStore.
    first : NDArray
        The initial value of the key.
    holds : bool
        Whether `travel` queues operators that read the answer. Such an operator holds a resource
        of MXNet while it waits. So it must be queued after the operators that encode messages.
    """

    key: int
    first: NDArray
    holds: bool

    def encode(self, job: Job, values: Optional[NDArray] = None) -> None:
        """Make the message of the gradients, or of values that are already scaled."""
        raise NotImplementedError

    def travel(self, priority: int) -> None:
        """Push the message, and pull the answer."""
        raise NotImplementedError

    def deliver(self, gradients: Gradients) -> None:
        """Write the answer to the gradients."""
        raise NotImplementedError


class InRows(Route):
    """A message in the rows of a row_sparse array.

    Parameters
    ----------
    kv : KVStore
    key : int
    channel : Channel
    layout : MessageRows
        The layout of the message in rows.
    lane, place : optional
        As in `Rows`.
    """

    def __init__(
        self,
        kv: KVStore,
        key: int,
        channel: Channel,
        layout: MessageRows,
        lane: Optional[NDArray] = None,
        place: Optional[Tuple[int, int]] = None,
    ) -> None:
        self.key, self.channel = key, channel
        self.rows = Rows(kv, key, layout, place, lane)
        self.first = self.rows.first()

    def copy(self, to: NDArray) -> None:
        """Copy the answer to this array, in the form that `Channel.deliver` takes."""
        raise NotImplementedError


class Payloads(InRows):
    """Payloads, which gluon_gc's server aggregates or stores. Parameters as in `InRows`."""

    def __init__(self, kv: KVStore, key: int, channel: Channel, **of_rows: Any) -> None:
        super().__init__(kv, key, channel, channel.codec.rows(), **of_rows)
        self.holds = self.rows.layout.count > 1
        self._count = self.rows.places if channel.gathered else 1
        self._framing = self.rows.layout.framing()
        self._received: List[NDArray] = []

    def encode(self, job: Job, values: Optional[NDArray] = None) -> None:
        self.channel.encode(job, values, self.rows.framing, self.rows.sent)

    def travel(self, priority: int) -> None:
        self.rows.push(priority)
        self._received = self.rows.pull(self._count, priority)

    def deliver(self, gradients: Gradients) -> None:
        self.channel.deliver(self._received, gradients, self._count, self._framing)

    def copy(self, to: NDArray) -> None:
        self.channel.codec.unframed(self._received, to, self._framing)


class SummedRows(InRows):
    """Values as bytes, which gluon_gc's server sums. Parameters as in `InRows`."""

    holds = True

    def __init__(self, kv: KVStore, key: int, channel: Channel, **of_rows: Any) -> None:
        super().__init__(kv, key, channel, MessageRows(((channel.message_bytes, None),)), **of_rows)
        self._values: Optional[NDArray] = None

    def encode(self, job: Job, values: Optional[NDArray] = None) -> None:
        self._values = self.channel.encode(job, values)

    def travel(self, priority: int) -> None:
        (answer,) = self.rows.exchange([operators.as_bytes(self._values)], priority)
        self._values = operators.sum_rows(answer, self.channel.dtype)

    def deliver(self, gradients: Gradients) -> None:
        self.channel.deliver([self._values], gradients)

    def copy(self, to: NDArray) -> None:
        self._values.copyto(to)


class Dense(Route):
    """Dense values, which MXNet's server sums. A key keeps its array, for the reason in `Rows`."""

    holds = False

    def __init__(self, kv: KVStore, key: int, channel: Channel) -> None:
        self._kv, self.key, self.channel = kv, key, channel
        values = channel.message_bytes // np.dtype(channel.dtype).itemsize
        self.first, self._array = (mx.nd.zeros(values, dtype=channel.dtype) for _ in range(2))

    def encode(self, job: Job, values: Optional[NDArray] = None) -> None:
        self.channel.encode(job, values, out=self._array)

    def travel(self, priority: int) -> None:
        self._kv.pushpull(self.key, self._array, out=self._array, priority=priority)

    def deliver(self, gradients: Gradients) -> None:
        self.channel.deliver([self._array], gradients)


class OfMachine(Route):
    """A message that the workers of a machine share: the owner sends the sum, the others no rows.

    Parameters
    ----------
    shared : SharedMessage
    route : Payloads or SummedRows
        The owner's route.
    """

    def __init__(self, shared: SharedMessage, route: InRows) -> None:
        self._shared, self._route = shared, route
        self.key, self.first = route.key, route.first
        self.holds = shared.owned and route.holds

    def encode(self, job: Job, values: Optional[NDArray] = None) -> None:
        self._shared.contribute(job)
        if self._shared.owned:
            self._route.encode(job, self._shared.total())

    def travel(self, priority: int) -> None:
        if self._shared.owned:
            self._route.travel(priority)
        else:
            self._route.rows.push(priority)

    def deliver(self, gradients: Gradients) -> None:
        if self._shared.owned:
            self._shared.answer(self._route.copy)
        self._shared.deliver(gradients, also=[self._route.rows.sent])

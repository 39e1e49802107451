"""Workers in threads of one process: the interfaces of gluon_gc.exchange, on NumPy.

The engine is stricter than a real one: `expect` clears the receive buffers at once, and `wait`
checks that the sent bytes have not changed.
"""

from __future__ import annotations

import queue
import time
from concurrent import futures
from contextlib import closing, nullcontext, suppress
from typing import (
    Any,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)

import numpy as np

from gluon_gc.exchange.coder import Coder
from gluon_gc.exchange.coding import HostCalls
from gluon_gc.exchange.exchange import Exchange
from gluon_gc.exchange.job import Request, Result
from gluon_gc.exchange.machines import Groups, Machines
from gluon_gc.exchange.transport import PeerError

TIMEOUT = 30.0  # seconds until a wait in a test without faults fails


class Network:
    """The connections between workers with these ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.closed: set[int] = set()  # the members that have closed their connections
        self.sent: list[tuple[Any, int, np.ndarray]] = []  # channels, senders and messages
        self._queues: dict[tuple[Any, int, int], queue.SimpleQueue] = {}

    def _queue(self, *key: Any) -> queue.SimpleQueue:
        return self._queues.setdefault(key, queue.SimpleQueue())

    def send(self, channel: Any, sender: int, receiver: int, message: Any) -> None:
        """Send an object, which nobody may change afterwards, between members."""
        self._queue(channel, sender, receiver).put(message)

    def receive(self, channel: Any, sender: int, receiver: int) -> Any:
        """Return the next object. Raises PeerError if the sender has ended before."""
        objects, deadline = self._queue(channel, sender, receiver), time.monotonic() + TIMEOUT
        ended = False
        while not ended:
            ended = sender in self.closed or time.monotonic() > deadline
            with suppress(queue.Empty):
                return objects.get(timeout=0 if ended else 0.1)
        own, other = self.ranks[receiver], self.ranks[sender]
        raise PeerError(f"worker {own} waits for worker {other}")


class Members:
    """`transport.Members` of a network."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.ranks = network, rank, network.ranks
        self._others = [member for member in range(len(self.ranks)) if member != rank]
        self._tags: list[int] = []

    def messages(self, phase: int, tag: int, rooms: Mapping[int, np.ndarray]) -> Messages:
        return Messages(self.network, self.rank, (phase, tag), rooms)

    def new_tag(self, identity: int) -> int:
        while identity in self._tags:
            identity += 1
        self._tags.append(identity)
        return identity

    def all_reduce(self, values: np.ndarray) -> AllReduce:
        self._send_to_all("all_reduce", values.copy())
        return AllReduce(self, values)

    def gather(self, mine: Any, doing: str) -> list[Any]:
        self._send_to_all("gather", mine)
        return self.receive_all("gather", mine)

    def close(self, keep: Any | None = None) -> None:
        self.network.closed.add(self.rank)

    def _send_to_all(self, channel: str, message: Any) -> None:
        for member in self._others:
            self.network.send(channel, self.rank, member, message)

    def receive_all(self, channel: str, mine: Any) -> list[Any]:
        """Return the objects of all members, by rank."""
        return [
            mine if member == self.rank else self.network.receive(channel, member, self.rank)
            for member in range(len(self.ranks))
        ]


class TwoLevels:
    """The networks of machines that sum first."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.inside = [Network(group) for group in groups]
        self.across = [Network(peers) for peers in zip(*groups)]

    def machines(self, rank: int) -> Machines:
        """Return the machines of an exchange, for the worker with this rank."""
        number = next(n for n, group in enumerate(self.groups) if rank in group)
        local = self.groups[number].index(rank)
        inside, across = Members(self.inside[number], local), Members(self.across[local], number)
        return Machines(self.groups, number, local, inside, across)

    def run(self, work: Callable[[Exchange], Any]) -> list:
        """Return the results of `work` by rank; see `run`."""
        return run(work, Network(range(sum(map(len, self.groups)))), self.machines)


class AllReduce:
    """The result of `all_reduce`: sums in the order of ranks."""

    def __init__(self, members: Members, values: np.ndarray) -> None:
        self._members, self._values = members, values

    def wait(self) -> None:
        first, *others = self._members.receive_all("all_reduce", self._values.copy())
        self._values[:] = sum(others, first)


class Messages:
    """`transport.Messages` through queues."""

    def __init__(
        self, network: Network, rank: int, channel: Any, rooms: Mapping[int, np.ndarray]
    ) -> None:
        self._network, self._rank, self._channel, self._rooms = network, rank, channel, rooms
        self._sent: list[tuple[np.ndarray, np.ndarray]] = []  # with copies of them
        self.expect()

    def expect(self) -> None:
        for room in self._rooms.values():
            room[:] = 0

    def send(self, data: Mapping[int, np.ndarray]) -> None:
        for receiver, message in data.items():
            copy = message.copy()
            self._sent.append((message, copy))
            if copy.size:
                self._network.sent.append((self._channel, self._rank, copy))
                self._network.send(self._channel, self._rank, receiver, copy)

    def wait(self) -> None:
        sent = list(self._sent)
        for sender in [sender for sender, room in self._rooms.items() if room.size]:
            message = self._network.receive(self._channel, sender, self._rank)
            self._rooms[sender][: message.size] = message
        assert all(np.array_equal(*pair) for pair in sent)
        del self._sent[: len(sent)]


class Order:
    """`arrays.Order` in host memory."""

    queue = staticmethod(nullcontext)


class Arrays:
    """`arrays.Arrays` for arrays of NumPy."""

    host = "cpu"
    coder = staticmethod(lambda device, *args, **options: Coder(*args, **options))
    calls = staticmethod(HostCalls)

    def memory(self, size: int, device: str | None = None) -> np.ndarray:
        assert device is None, "there is no GPU"
        return np.zeros(size, np.uint8)

    def view(self, room: np.ndarray, dtype: str) -> np.ndarray:
        return room.view(dtype)

    def address(self, values: np.ndarray) -> int:
        return values.ctypes.data

    def order(self, device: str, memory: Iterable[np.ndarray]) -> Order:
        return Order()

    def itemsize(self, dtype: str) -> int:
        return np.dtype(dtype).itemsize

    def copy(self, source: np.ndarray, target: np.ndarray, scale: float = 1.0) -> None:
        target[:] = source * source.dtype.type(scale)

    def multiply(self, values: np.ndarray, factor: float) -> None:
        values *= values.dtype.type(factor)

    def zero(self, values: np.ndarray) -> None:
        values[:] = 0

    def sum_rows(self, rows: np.ndarray, total: np.ndarray) -> None:
        first, *others = rows.astype(np.promote_types(rows.dtype, np.float32))
        total[:] = sum(others, first)

    def check_finite(self, values: np.ndarray) -> Callable[[], bool]:
        is_finite = bool(np.isfinite(values).all())
        return lambda: is_finite

    def in_host_memory(self, device: str) -> bool:
        return True

    def keeps_payloads(self, device: str, compressor: Any) -> bool:
        return False

    def device_collectives(self, device: str, members: Members) -> Any:
        raise NotImplementedError("there is no GPU")


class Values:
    """`arrays.Values`: flat arrays by name."""

    device = Arrays.host
    queue = staticmethod(nullcontext)

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays, self.names = arrays, arrays.keys()
        self.dtypes = tuple(array.dtype.name for array in arrays.values())

    def of(self, piece: Any) -> np.ndarray:
        return self.arrays[piece.tensor][piece.begin : piece.end]

    def addresses(self, pieces: Sequence[Any]) -> list[int]:
        return [self.of(piece).ctypes.data for piece in pieces]


def finished(start: Callable[..., None], request: Request, *args: Any) -> Result:
    """Start to exchange a request, and return the result after its end."""
    return started(start, request, *args).result(2 * TIMEOUT)


def started(start: Callable[..., None], request: Request, *args: Any) -> futures.Future:
    """Start to exchange a request, and return a future of the result."""
    future: futures.Future = futures.Future()

    def done(result: Result | None, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    start(request, *args, done)
    return future


def run(
    work: Callable[[Exchange], Any], network: Network, machines: Any = lambda rank: None
) -> list:
    """Return the results of `work` by rank, which is called with the exchange of each worker.

    `machines` returns the `Machines` of a worker, given its rank.
    """

    def call(rank: int) -> Any:
        exchange = Exchange(Members(network, rank), Arrays(), machines(rank))
        with closing(exchange):
            return work(exchange)

    with futures.ThreadPoolExecutor(len(network.ranks)) as pool:
        calls = [pool.submit(call, rank) for rank in network.ranks]
        for ended in futures.wait(calls, return_when=futures.FIRST_EXCEPTION).done:
            ended.result()  # the first error, not a time-out that follows from it
    return [ended.result() for ended in calls]

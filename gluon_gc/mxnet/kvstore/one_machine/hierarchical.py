"""The base of backends in which the workers of a machine first sum their gradients."""

from __future__ import annotations

from typing import ClassVar, ContextManager, Mapping, Sequence

from .... import env
from ....env import Cluster
from ....exchange.plan import Chunk
from ....launch.leaving import ending
from ....launch.machine import Machine
from ....launch.scheduler.stalls import Progress
from ...exchange.channel import Channel
from ...exchange.exchange import Exchange
from .shared_memory import SharedMemory, SharedMessage


class HierarchicalExchange(Exchange):
    """An exchange in which the workers of a machine share the messages of some channels.

    One worker owns such a message: it compresses the machine's sum and exchanges it with other
    machines. Residuals, momentum and random streams belong to the machine.
    """

    connected: ClassVar[HierarchicalExchange | None] = None  # this process's, of each class
    _progress: Progress

    def __init__(self) -> None:
        super().__init__()
        self._machine = (0, 1)  # the number of this machine, and the number of machines
        self._memory: SharedMemory | None = None
        self._shared: dict[Channel, SharedMessage] = {}

    @classmethod
    def connection(cls) -> HierarchicalExchange:
        """The backend that this process is connected with. A process has at most one."""
        return cls.connected or cls()

    def abandon(self, why: str) -> None:
        if self.connected is self:
            self._abandon(why)
            type(self).connected = None
            ending().abandoned()

    def _abandon(self, why: str) -> None:
        """Disconnect at once, and tell the other nodes why."""
        raise NotImplementedError

    def _on_machine(self) -> Cluster:
        """This worker's rank on its machine. Each job there has its own root_uri or root_port."""
        raise NotImplementedError

    def _shares_machine(self) -> bool:
        return self.local_size > 1

    def _shares(self, channel: Channel) -> bool:
        return self._shares_machine() and channel.hierarchical

    def _waiting(self, call: str = "") -> ContextManager:
        """A context for waits for other workers, in the user's function `call`."""
        return self._progress.waiting(call)

    def _open_shared(self, channels: Sequence[Channel]) -> None:
        """Share the messages of new channels; all workers of a machine make the same call."""
        channels = [channel for channel in channels if self._shares(channel)]
        if not channels:
            return
        _, machines = self._machine
        answers = [machines if channel.gathered else 1 for channel in channels]
        with self._waiting():
            if self._memory is None:
                timeout = env.get("GLUON_GC_CONNECT_TIMEOUT")
                self._memory = SharedMemory(Machine(self._on_machine(), timeout))
            messages = self._memory.open(channels, answers, self._aggregators)
            self._shared.update(zip(channels, messages))

    def _keep_earlier(self, channels: Sequence[Channel]) -> None:
        shared = [self._shared[channel] for channel in channels if channel in self._shared]
        if shared:
            with self._waiting():
                self._memory.keep_earlier(shared)
        super()._keep_earlier([channel for channel in channels if channel not in self._shared])

    def _forget(self, channel: Channel) -> None:
        super()._forget(channel)
        self._progress.unwatch(channel.under_way)
        self._shared.pop(channel, None)

    def _close_shared(self) -> None:
        if self._memory is not None:
            self._memory.close()

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        # The workers of a machine sum in host memory.
        return super()._can_run_on_gpu(channel) and channel not in self._shared

    def sender(self, chunk: Chunk) -> tuple[int, int]:
        summed = chunk.params is not None and chunk.params.hierarchical and not chunk.rows
        return self._machine if summed and self._shares_machine() else super().sender(chunk)

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> tuple[float, float]:
        return super().message_bytes(channel, done) if self.compresses(channel) else (0, 0)

    def compresses(self, channel: Channel) -> bool:
        return channel not in self._shared or self._shared[channel].owned

"""The base of backends that connect machines: the workers of a machine sum gradients first."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Tuple

from .... import env
from ....env import Cluster
from ....launch.machine import Machine
from ....launch.progress import Progress
from ....plan import Chunk
from ...channel import Channel
from ...exchange import Exchange
from .shared_memory import Pool, Pooled


class HierarchicalExchange(Exchange):
    """Base of the backends that connect machines.

    Messages of `Channel.hierarchical` are pooled where a machine has several workers: their owner
    sends them, with the machine's residuals, momentum and random streams.
    """

    _progress: Progress

    def __init__(self) -> None:
        super().__init__()
        self._machine = (0, 1)  # its number, and how many there are
        self._pool: Optional[Pool] = None
        self._pooled: Dict[Channel, Pooled] = {}

    def _on_machine(self) -> Cluster:
        """This worker's place on its machine, in a job that no other there has the name of."""
        raise NotImplementedError

    def _pools(self) -> bool:
        """Whether the workers of a machine can pool what they have."""
        return self.local_size > 1

    def _open_pool(self, channels: Sequence[Channel]) -> None:
        """Pool those of these messages that can be; all workers of a machine call it alike."""
        channels = [channel for channel in channels if self._pools() and channel.hierarchical]
        if not channels:
            return
        _, machines = self._machine
        answers = [machines if channel.gathered else 1 for channel in channels]
        with self._progress.waiting():
            if self._pool is None:
                timeout = env.get("GLUON_GC_CONNECT_TIMEOUT")
                self._pool = Pool(Machine(self._on_machine(), timeout))
            self._pooled.update(zip(channels, self._pool.open(channels, answers, {})))

    def _forget(self, channel: Channel) -> None:
        super()._forget(channel)
        self._pooled.pop(channel, None)

    def _close_pool(self) -> None:
        """Leave; nothing is under way any more."""
        if self._pool is not None:
            self._pool.close()

    def _can_run_on_gpu(self, channel: Channel) -> bool:
        # The sum over a machine is made in the host's memory.
        return super()._can_run_on_gpu(channel) and channel not in self._pooled

    def place(self, chunk: Chunk) -> Tuple[int, int]:
        pooled = self._pools() and chunk.params is not None and chunk.params.hierarchical
        return self._machine if pooled else super().place(chunk)

    def message_bytes(self, channel: Channel, done: Mapping[str, float]) -> Tuple[float, float]:
        if channel in self._pooled and not self._pooled[channel].owned:
            return 0, 0
        return super().message_bytes(channel, done)

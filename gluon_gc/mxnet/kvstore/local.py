"""The backend without a network: one process is the only worker and the aggregator."""

from __future__ import annotations

from typing import Sequence

from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ..exchange.channel import Channel
from ..exchange.exchange import Exchange
from ..exchange.gradient import Gradient, Job
from ..exchange.sparse import SparseChannel


class Local(Exchange):
    """One worker that also aggregates, bit for bit like a worker with a server."""

    type = "local"

    def _open(self, channels: Sequence[Channel]) -> None:
        self._aggregators.update((c, self._aggregator(c)) for c in channels if c.aggregated)

    def _exchange(self, channels: Sequence[Channel], job: Job, priority: int) -> None:
        sent = [channel.encode(job) for channel in channels]
        for channel, message in zip(channels, sent):
            if channel.aggregated:
                message = self._aggregators[channel].aggregate(message, count=1)
            channel.deliver([message], job.gradients)

    def _exchange_rows(
        self, channel: SparseChannel, gradient: Gradient, priority: int
    ) -> tuple[RowSparseNDArray, None]:
        return channel.sent, None

    def _broadcast(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        """Do nothing: this worker is the only one."""

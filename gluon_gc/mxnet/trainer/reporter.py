"""TrainerReporter: what the exchanges of a trainer do, every few steps."""

from __future__ import annotations

from functools import partial
from typing import (
    TYPE_CHECKING,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ...compression import CompressionParams
from ...exchange.agreement import Facts
from ...exchange.plan import Slice, Tensor
from ...exchange.statistics import Window
from ...reporting import Measured, Norms, Reporter, Settings
from ..engine.operators import clip_factor
from ..exchange.channel import Channel
from ..exchange.coder import MessageCoder
from ..exchange.exchange import Exchange
from ..exchange.gradient import Job, sums_of

if TYPE_CHECKING:
    from .averaging import Averaging

_WRITERS = ["tensorboardX"]
_TINY = 1e-100  # a norm that all other norms are clipped to


class TrainerReporter(Reporter):
    """Measures the exchanges of a trainer.

    Gradients are measured in the step of the report, and the vectors of an algorithm in their first
    round after a report. The operators are queued on MXNet's engine, and the report waits for them.
    """

    def __init__(self, averaging: Averaging, make_settings: Callable[[], Settings]) -> None:
        self._averaging, self._window = averaging, Window()
        self._seen: set[str] = set()  # the tensors that were measured
        self._norms: list[Callable[[], Iterable[tuple[str, Norms]]]] = []
        # The averages and the exact averages.
        self._averages: list[tuple[NDArray, NDArray]] = []
        exchange = averaging.exchange
        super().__init__(make_settings, exchange.rank, exchange.local_rank, self._agree, _WRITERS)
        averaging.stats_of_step(True, self._window)  # the first report begins here

    def _agree(self, facts: Facts) -> None:
        self._averaging.exchange.agree("report", facts)

    def _gathered(self, share: float) -> list[float]:
        exchange = self._averaging.exchange
        shares = np.zeros(exchange.num_workers)
        shares[exchange.rank] = share
        total = exchange.total(
            self._averaging.tensor_name("waits"), mx.nd.array(shares, dtype="float64"), "step"
        )
        return total.asnumpy().tolist()

    def _measured(self, steps: int) -> Measured:
        averaging = self._averaging
        names = {tensor.name: averaging.called(*key) for key, tensor in averaging.tensors.items()}
        residuals = [(names[name], norms) for read in self._norms for name, norms in read()]
        errors = [_difference(average, exact) for average, exact in self._averages]
        for kept in (self._seen, self._norms, self._averages):
            kept.clear()
        total = averaging.stats_of_step(True, self._window, steps=steps)["total"]
        seconds = total.get("exchange_seconds", 0.0)  # missing with a mailbox
        return Measured(averaging.steps, total, seconds, residuals, errors)

    def measure(self, job: Job) -> Callable[[], None] | None:
        """Measure a job's tensors before its exchange. All workers call this.

        The result must be called after `Exchange.start`. None: nothing is measured now.
        """
        new = job.gradients.keys() - self._seen
        only_at_report = self._averaging.described is None
        if not (new and self.is_open) or (only_at_report and not self.is_due):
            return None
        self._seen |= new
        exchange, gradients = self._averaging.exchange, job.gradients
        channels = [c for c in exchange.channels.of(gradients) if isinstance(c, Channel)]
        dense = {name for channel in channels if not channel.in_rows for name in channel.tensors}
        # All workers exchange them in this order.
        values = {name: sums_of([gradients[name]])[0] for name in gradients if name in dense}
        exact: dict[str, NDArray] = {}
        if self.measures_error and any(channel.is_lossy for channel in channels):
            exact = self._start_exact(job, values)
        measured = [
            (channel, {piece: _norm(values[piece.tensor], piece) for piece in channel.slices})
            for channel in channels
            if isinstance(channel.coder, MessageCoder) and channel.coder.keeps_residual
            if exchange.compresses(channel) and channel.tensors <= values.keys()
        ]

        scale = job.scale, job.factor

        def finish() -> None:
            for channel, norms in measured:
                residuals = channel.coder.residual_norms()
                self._norms.append(partial(_norms, exchange, channel, norms, residuals, *scale))
            for name, average in exact.items():
                self._averages.append((gradients[name].copied_result(), average))

        return finish

    def _start_exact(self, job: Job, values: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Start to average copies, uncompressed, in at least float32."""
        exchange, copies = self._averaging.exchange, {}
        for name, array in values.items():
            dtype = "float64" if array.dtype == np.float64 else "float32"
            copies[name] = array.as_in_context(mx.cpu()).astype(dtype)
        new = [
            Tensor(f"{name}.exact", copy.size, np.dtype(copy.dtype).name, CompressionParams())
            for name, copy in copies.items()
            if not exchange.declared(f"{name}.exact")
        ]
        if new:
            exchange.declare(new)
        gradients = {
            f"{name}.exact": exchange.channels.gradient(f"{name}.exact", [copy], [copy])
            for name, copy in copies.items()
        }
        with exchange.uncounted():
            exchange.start(Job(gradients, job.scale, job.factor))
        return copies


def _norm(values: NDArray, piece: Slice) -> NDArray:
    """Queue the computation of a slice's norm. The result is for `_read`."""
    return clip_factor([values.reshape(-1)[piece.begin : piece.end]], 1.0, _TINY)


def _read(factor: NDArray) -> float:
    factor = factor.asscalar()
    return 0.0 if factor == 1.0 else _TINY / factor  # also if it is not finite


def _norms(
    exchange: Exchange,
    channel: Channel,
    norms: Mapping[Slice, NDArray],
    residuals: Callable[[], list[float]],
    scale: float,
    factor: NDArray | None,
) -> Iterator[tuple[str, Norms]]:
    """The norms of each chunk's residual and vector after an exchange; waits for it.

    `scale` and `factor` are those of the exchange's `Job`.
    A residual of a machine is compared with the sum of as many vectors as the machine has workers.
    """
    scale *= 1.0 if factor is None else factor.asscalar()
    for chunk, residual in zip(channel.chunks, residuals()):
        (piece,) = chunk.slices
        _, senders = exchange.sender(chunk)
        own = scale * exchange.num_workers / senders * _read(norms[piece])
        yield piece.tensor, (residual, own)


def _difference(average: NDArray, exact: NDArray) -> Norms:
    """The norms of the error and of the exact average."""
    expected = exact.asnumpy().astype(np.float64).reshape(-1)
    return np.linalg.norm(average.asnumpy().reshape(-1) - expected), np.linalg.norm(expected)

"""Checks in some steps that all workers have equal weights."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

from ... import weight_samples
from ...weight_samples import ELEMENTS, EVERY, PARAMETERS, Sample
from ..exchange.exchange import Exchange
from ..exchange.totals import total
from .parameters import first_copy


class WeightCheck:
    """The checks of one trainer in one exchange; all workers make the same calls.

    A check sums an array in which each worker has filled its own row. The next check, `EVERY`
    updates later, reads the sum: until then it has arrived, so training need not wait.

    Parameters
    ----------
    exchange : Exchange
    name : str
        The name of the samples in the exchange.
    """

    def __init__(self, exchange: Exchange, name: str) -> None:
        self._exchange, self._name = exchange, name
        self._updates = 0
        self._pending: Optional[Tuple[NDArray, Sequence[Sample], Sequence[str], str]] = None

    def before_update(self, params: Sequence[Parameter], step: int) -> None:
        """Count an update with averages. If a check is due, queue it, and read the last one.

        The weights must be equal before an update. At other times they need not be: a script may
        change them for a while, as sharpness-aware minimization does for a second backward pass.

        Parameters
        ----------
        params : sequence of Parameter
            The parameters that are trained.
        step : int
            The number of the step.

        Raises
        ------
        RuntimeError
            The last check has found a difference. All workers raise it in the same step.
        """
        self._updates += 1
        if self._exchange.num_workers == 1 or self._updates % EVERY != 1:
            return
        if self._pending is not None:
            rows, *about = self._pending
            self._pending = None  # a script may broadcast the weights, and go on
            problem = weight_samples.problem(rows.asnumpy(), *about)
            if problem:
                raise RuntimeError(problem)
        weights = [(param.name, first_copy(param)) for param in params]
        weights = [(name, array) for name, array in weights if np.dtype(array.dtype).kind == "f"]
        names = [name for name, _ in weights]
        chosen = weight_samples.samples(
            self._updates // EVERY, [array.size for _, array in weights]
        )
        rows = mx.nd.zeros((self._exchange.num_workers, PARAMETERS * ELEMENTS))
        if chosen:
            parts = [
                _elements(weights[parameter][1], begin, end) for parameter, begin, end in chosen
            ]
            own = mx.nd.concat(*(part.as_in_context(mx.cpu()) for part in parts), dim=0)
            rows[self._exchange.rank, : own.size] = own
        total(self._exchange, self._name, rows, "step")
        self._pending = rows, chosen, names, f"the update of step {step}"


def _elements(array: NDArray, begin: int, end: int) -> NDArray:
    """The elements from `begin` to `end` of an array, in the order of its indices, as float32.

    A slice would be a view, which MXNet refuses if MKL-DNN keeps the array in its own layout.
    """
    indices = np.stack(np.unravel_index(np.arange(begin, end), array.shape))
    on_device = mx.nd.array(indices, array.context, dtype="int64")
    return mx.nd.gather_nd(array, on_device).astype("float32")

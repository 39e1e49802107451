"""Exchanges uncompressed row-sparse gradients: only rows that some worker has travel."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import kernels
from ...exchange.plan import Tensor
from ..engine import operators
from ..engine.operators import MessageRows
from .channel import Metered
from .gradient import Gradient, Job


class SparseChannel(Metered):
    """The channel of one row-sparse gradient, which is its only chunk."""

    params = coder = None  # it is not compressed
    dtype = "rows of float32"

    def __init__(self, tensor: Tensor) -> None:
        self.chunks = (tensor,)
        self.size = tensor.size
        self.tensor, self.tensors = tensor.name, {tensor.name}
        self.shape = tensor.rows, tensor.size // tensor.rows
        self.message_bytes = 0.0
        self.sent = mx.nd.sparse.zeros("row_sparse", self.shape)
        self.layout = MessageRows(((kernels.row_list_bytes(tensor.rows), 0),))
        super().__init__(operators.new_meter())
        self._checks = {"checked": int(tensor.checked), **operators.refusing([tensor.refused])}

    def encode(self, gradient: Gradient, job: Job) -> None:
        """Write the gradient's rows, times the job's scale and factor, to `sent`."""
        factors = () if job.factor is None else (job.factor.as_in_context(mx.cpu()),)
        operators.call(
            "rows_scaled",
            (gradient.own, self._meter, *factors),
            self.sent,
            scale=repr(float(job.scale)),
            clipped=len(factors),
            step=job.step,
        )

    def listed(self, gradient: Gradient) -> NDArray:
        """The list of the gradient's rows, uint8, for `deliver`."""
        return operators.call("rows_listed", (gradient.own,))

    def deliver(
        self, rows: RowSparseNDArray, gradient: Gradient, lists: NDArray | None = None
    ) -> None:
        """Write to the gradient the rows that are in any of the lists; without lists, all rows."""
        inputs = (rows, self._meter, *(() if lists is None else (lists,)))
        listed = int(lists is not None)
        operators.call("rows_received", inputs, gradient.result, lists=listed, **self._checks)

    def shares(self) -> list[tuple[str, float]]:
        return [(self.tensor, 1.0)]


def summed(channel: SparseChannel, ids: bytes, values: bytes) -> RowSparseNDArray:
    """The sums of rows, given the row numbers of all workers and the rows' values."""
    numbers = np.frombuffer(ids, np.int64)
    rows, row_of = np.unique(numbers, return_inverse=True)
    sums = np.zeros((rows.size, channel.shape[1]), np.float32)
    np.add.at(sums, row_of, np.frombuffer(values, np.float32).reshape(numbers.size, -1))
    return mx.nd.sparse.row_sparse_array((sums, rows), channel.shape)

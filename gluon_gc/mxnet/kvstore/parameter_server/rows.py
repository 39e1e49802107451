"""Sends messages through MXNet's server as rows of a row_sparse array.

The array has a block of rows for each sender. The server's union of all pushes is all messages.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ...engine import operators
from ...engine import order as engine
from ...engine.operators import MessageRows


class Rows:
    """The worker's end of a key. The server writes its answer from row 0 on.

    A server counts the pushes of a key, not their senders. So one exchange must end before the
    next begins. MXNet's engine ensures that, because a key always uses the same arrays.

    Parameters
    ----------
    kv : KVStore
    key : int
    layout : MessageRows
        The layout of a message in rows.
    place : tuple of (int, int), optional
        The number of this message in a step, and the number of messages. By default, each worker
        sends one message, and its number is the rank.
    lane : NDArray, optional
        Exchanges in the same lane run one after the other.
    """

    def __init__(
        self,
        kv: KVStore,
        key: int,
        layout: MessageRows,
        place: Optional[Tuple[int, int]] = None,
        lane: Optional[NDArray] = None,
    ) -> None:
        self._kv, self.key, self.layout, self._lane = kv, key, layout, lane
        self.place, self.places = place or (kv.rank, kv.num_workers)
        shape = (self.places * layout.count, layout.row_words)
        self.sent = mx.nd.sparse.zeros("row_sparse", shape)
        pulls = 1 if layout.count == 1 else 2
        self._pulled = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(pulls)]
        self._row0 = mx.nd.zeros(1, dtype="int64")
        self._first_rows = mx.nd.arange(0, shape[0], layout.count, dtype="int64")
        self.framing = layout.framing_at(self.place, self.places)

    def first(self) -> RowSparseNDArray:
        """The initial value of the key: zeros in all rows."""
        shape = self.sent.shape
        return mx.nd.sparse.row_sparse_array((mx.nd.zeros(shape), np.arange(shape[0])), shape)

    def push(self, priority: int = 0) -> None:
        """Push `sent`, after the previous exchange of the lane has ended."""
        if self._lane is not None:
            engine.meet(self._lane, self.sent)
        self._kv.push(self.key, self.sent, priority)

    def pull(self, answers: int = 1, priority: int = 0) -> List[RowSparseNDArray]:
        """Pull the first message that the server stores, or one from each sender.

        Its rows are in one or two arrays.
        """
        wanted = self._row0 if answers == 1 else self._first_rows
        for array in self._pulled:  # the first row of a message holds the number of further rows
            self._kv.row_sparse_pull(self.key, out=array, row_ids=wanted, priority=priority)
            if array is not self._pulled[-1]:
                wanted = operators.rows_left(array, self.layout, answers)
        if self._lane is not None:
            engine.meet(self._pulled[-1], self._lane)
        return self._pulled

    def exchange(self, parts: Sequence[NDArray], priority: int = 0) -> List[NDArray]:
        """Push a message of these parts (uint8), and pull the answer, as `answer` does."""
        operators.frame(parts, self.layout, self.place, self.places, out=self.sent)
        self.push(priority)
        return self.answer(priority)

    def answer(self, priority: int = 0) -> List[NDArray]:
        """Pull the server's answer: its parts, uint8, shape (1, bytes) each."""
        return operators.unframe(self.pull(1, priority), self.layout)

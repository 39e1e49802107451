"""Messages through MXNet's server, in rows: a worker's are those that begin at its rank's place."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import engine, operators
from ...operators import MessageRows


class Rows:
    """The worker's end. The server merges what workers push; it has its answers from row 0 on.

    A server counts the pushes of a key, not who sent them. So a key is always exchanged with the
    same arrays: MXNet's engine then ends one exchange before it begins the next.

    Parameters
    ----------
    kv : KVStore
    key : int
    layout : MessageRows
        Of the messages.
    place : tuple of two int, optional
        Which message of a step this is, of how many; by default each worker has one, by its rank.
    lane : NDArray, optional
        What is exchanged in the same lane is exchanged one after the other.
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
        """What the server is to store first."""
        shape = self.sent.shape
        return mx.nd.sparse.row_sparse_array((mx.nd.zeros(shape), np.arange(shape[0])), shape)

    def push(self, priority: int = 0) -> None:
        """Send what is in `sent`, once what was exchanged in the same lane is here."""
        if self._lane is not None:
            engine.meet(self._lane, self.sent)
        self._kv.push(self.key, self.sent, priority)

    def pull(self, answers: int = 1, priority: int = 0) -> List[RowSparseNDArray]:
        """The rows of the first messages that the server has."""
        wanted = self._row0 if answers == 1 else self._first_rows
        for array in self._pulled:  # the first row of a message says how many more there are
            self._kv.row_sparse_pull(self.key, out=array, row_ids=wanted, priority=priority)
            if array is not self._pulled[-1]:
                wanted = operators.rows_left(array, self.layout, answers)
        if self._lane is not None:
            engine.meet(self._pulled[-1], self._lane)
        return self._pulled

    def exchange(self, parts: Sequence[NDArray], priority: int = 0) -> List[NDArray]:
        """Push a message of bytes; the parts of the server's answer, shape (1, bytes) each."""
        operators.frame(parts, self.layout, self.place, self.places, out=self.sent)
        self.push(priority)
        return self.answer(priority)

    def answer(self, priority: int = 0) -> List[NDArray]:
        """The parts of the server's answer."""
        return operators.unframe(self.pull(1, priority), self.layout)

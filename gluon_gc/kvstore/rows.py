"""Messages through MXNet's server, in rows: a worker's are those that begin at its rank's place."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from .. import engine, operators
from ..operators import Counter, MessageRows


class Rows:
    """The worker's end. The server merges what workers push; it has its answers from row 0 on.

    A server counts the pushes of a key, not who sent them. So a key is always exchanged with the
    same arrays: MXNet's engine then ends one exchange before it begins the next.
    """

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self._row0 = mx.nd.zeros(1, dtype="int64")
        self._layouts: Dict[int, MessageRows] = {}
        self._first_rows: Dict[int, NDArray] = {}  # of all workers' messages
        self._sent: Dict[int, RowSparseNDArray] = {}
        self._pulled: Dict[int, List[RowSparseNDArray]] = {}

    def open(self, key: int, layout: MessageRows) -> RowSparseNDArray:
        """Expect messages of that layout; returns what the server is to store first."""
        shape = (self._kv.num_workers * layout.count, layout.row_words)
        self._layouts[key] = layout
        self._first_rows[key] = mx.nd.arange(0, shape[0], layout.count, dtype="int64")
        self._sent[key] = mx.nd.sparse.zeros("row_sparse", shape)
        pulls = 1 if layout.count == 1 else 2
        self._pulled[key] = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(pulls)]
        return mx.nd.sparse.row_sparse_array((mx.nd.zeros(shape), np.arange(shape[0])), shape)

    def push(
        self,
        key: int,
        parts: Sequence[NDArray],
        priority: int = 0,
        counter: Optional[Counter] = None,
        lane: Optional[NDArray] = None,
    ) -> None:
        """Send a message of these parts, once what was exchanged in the same lane is here."""
        sent, layout = self._sent[key], self._layouts[key]
        rank, workers = self._kv.rank, self._kv.num_workers
        operators.frame(parts, layout, rank, workers, counter, out=sent)
        if lane is not None:
            engine.meet(lane, sent)
        self._kv.push(key, sent, priority)

    def pull(
        self,
        key: int,
        answers: int = 1,
        priority: int = 0,
        counter: Optional[Counter] = None,
        lane: Optional[NDArray] = None,
    ) -> List[NDArray]:
        """The parts of the first messages that the server has, shape (answers, bytes) each."""
        layout, pulled = self._layouts[key], self._pulled[key]
        wanted = self._row0 if answers == 1 else self._first_rows[key]
        for array in pulled:  # the first row of a message says how many more there are
            self._kv.row_sparse_pull(key, out=array, row_ids=wanted, priority=priority)
            if array is not pulled[-1]:
                wanted = operators.rows_left(array, layout, answers)
        if lane is not None:
            engine.meet(pulled[-1], lane)
        return operators.unframe(pulled, layout, answers, counter)

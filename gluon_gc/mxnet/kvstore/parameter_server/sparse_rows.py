"""Sends uncompressed rows of row-sparse gradients through MXNet's server, which sums them."""

from __future__ import annotations

from typing import List, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ...engine import operators
from ...exchange.sparse import SparseChannel
from .rows import Rows


class SparseRows:
    """The worker's end of a channel. One key carries the lists of row numbers, one the rows.

    Parameters
    ----------
    kv : KVStore
    keys : list of int
        Two keys.
    channel : SparseChannel
    """

    def __init__(self, kv: KVStore, keys: List[int], channel: SparseChannel) -> None:
        self._kv, self.keys, self._channel = kv, keys, channel
        self._lists = Rows(kv, keys[0], channel.layout)
        self._pulled = mx.nd.sparse.zeros("row_sparse", channel.shape)

    def first(self) -> List[RowSparseNDArray]:
        """The initial values of both keys. They have all rows, the only ones that can be pulled."""
        shape = self._channel.shape
        rows = (mx.nd.zeros(shape), np.arange(shape[0]))
        return [self._lists.first(), mx.nd.sparse.row_sparse_array(rows, shape)]

    def exchange(self, listed: NDArray, priority: int) -> Tuple[RowSparseNDArray, NDArray]:
        """Push `channel.sent` and the list of its rows. Returns the sums and all workers' lists."""
        kv, workers, layout = self._kv, self._kv.num_workers, self._channel.layout
        operators.frame([listed], layout, kv.rank, workers, out=self._lists.sent)
        self._lists.push(priority)
        kv.push(self.keys[1], self._channel.sent, priority)
        (lists,) = operators.unframe(self._lists.pull(workers, priority), layout, workers)
        wanted = operators.call("rows_of_any", (lists,))
        kv.row_sparse_pull(self.keys[1], out=self._pulled, row_ids=wanted, priority=priority)
        return self._pulled, lists

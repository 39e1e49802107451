"""Uncompressed rows through MXNet's server, which adds up those of the same number."""

from __future__ import annotations

from typing import List, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

from ... import operators
from ...sparse import SparseChannel
from .rows import Rows


class SparseRows:
    """The worker's end of a channel: one key for which rows each worker has, and one for them.

    Parameters
    ----------
    kv : KVStore
    keys : tuple of two int
    channel : SparseChannel
    """

    def __init__(self, kv: KVStore, keys: Tuple[int, int], channel: SparseChannel) -> None:
        self._kv, self.keys, self._channel = kv, list(keys), channel
        self._lists = Rows(kv, keys[0], channel.layout)
        self._pulled = mx.nd.sparse.zeros("row_sparse", channel.shape)

    def first(self) -> List[RowSparseNDArray]:
        """What the server is to store first under each key: all rows, since it finds only those."""
        shape = self._channel.shape
        rows = (mx.nd.zeros(shape), np.arange(shape[0]))
        return [self._lists.first(), mx.nd.sparse.row_sparse_array(rows, shape)]

    def exchange(self, listed: NDArray, priority: int) -> Tuple[RowSparseNDArray, NDArray]:
        """Push what the channel sends; the sums of rows, and every worker's list of rows."""
        kv, workers, layout = self._kv, self._kv.num_workers, self._channel.layout
        operators.frame([listed], layout, kv.rank, workers, out=self._lists.sent)
        self._lists.push(priority)
        kv.push(self.keys[1], self._channel.sent, priority)
        (lists,) = operators.unframe(self._lists.pull(workers, priority), layout, workers)
        wanted = operators.call("rows_of_any", (lists,))
        kv.row_sparse_pull(self.keys[1], out=self._pulled, row_ids=wanted, priority=priority)
        return self._pulled, lists

"""Pages of bytes that a worker and a server exchange in bulk, as rows of a row_sparse array.

Only one worker pushes the rows of a page; the others push no rows. The bytes are framed as ordinary
floats, because MXNet's server adds up the pushes of all workers.
"""

from __future__ import annotations

from typing import Optional

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import kernels

_ROWS, _ROW_WORDS = 256, 4096
_ROW_BYTES = kernels.frame_bytes(_ROW_WORDS)
_SHAPE = (_ROWS, _ROW_WORDS)
PAGE_BYTES = _ROWS * _ROW_BYTES


def framed(page: np.ndarray, rows: Optional[int] = None) -> RowSparseNDArray:
    """A page, uint8, in this number of rows; by default, in as many as it needs."""
    if rows is None:
        rows = -(-page.size // _ROW_BYTES)
    whole = np.zeros(rows * _ROW_BYTES, np.uint8)
    whole[: page.size] = page
    words = kernels.frame(whole).view(np.float32).reshape(rows, _ROW_WORDS)
    return mx.nd.sparse.row_sparse_array((words, np.arange(rows)), _SHAPE)


def unframed(rows: RowSparseNDArray) -> np.ndarray:
    """The bytes of an array's rows: a page, and the padding of its last row."""
    words = rows.data.asnumpy().view(np.uint32).ravel()
    return kernels.unframe(words, words.size // _ROW_WORDS * _ROW_BYTES)


def full(page: np.ndarray) -> RowSparseNDArray:
    """A page in all rows. A server can only answer pulls of rows that it stores."""
    return framed(page, _ROWS)


class Pages:
    """The worker's end of the key under which pages travel to and from a server."""

    def __init__(self, kv: KVStore, key: int) -> None:
        self._kv, self.key = kv, key
        self._nothing = mx.nd.sparse.zeros("row_sparse", _SHAPE)
        self._pulled: Optional[RowSparseNDArray] = None

    def first(self) -> RowSparseNDArray:
        return full(np.empty(0, np.uint8))

    def push(self, page: Optional[np.ndarray] = None) -> None:
        """Push a page, or nothing. All workers call this, and wait before they call it again."""
        self._kv.push(self.key, self._nothing if page is None else framed(page))

    def ask(self) -> None:
        """Start to pull the page that the server has prepared."""
        if self._pulled is None:
            self._pulled = mx.nd.sparse.zeros("row_sparse", _SHAPE)
            self._all_rows = mx.nd.arange(_ROWS, dtype="int64")
        self._kv.row_sparse_pull(self.key, out=self._pulled, row_ids=self._all_rows)

    def answer(self) -> np.ndarray:
        """The page that `ask` pulls. Blocks until it has arrived."""
        return unframed(self._pulled)

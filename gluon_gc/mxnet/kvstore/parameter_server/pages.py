"""Bytes in bulk between a worker and a server: a page lies in the rows of a row_sparse array.

Its words are framed, since MXNet's server adds up what all workers push: one of them has the bytes,
the others push no rows.
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
    """A page, uint8, in so many rows, or in as many as it takes."""
    if rows is None:
        rows = -(-page.size // _ROW_BYTES)
    whole = np.zeros(rows * _ROW_BYTES, np.uint8)
    whole[: page.size] = page
    words = kernels.frame(whole).view(np.float32).reshape(rows, _ROW_WORDS)
    return mx.nd.sparse.row_sparse_array((words, np.arange(rows)), _SHAPE)


def unframed(rows: RowSparseNDArray) -> np.ndarray:
    """The bytes of all rows that are there: a page, with what fills up its last row."""
    words = rows.data.asnumpy().view(np.uint32).ravel()
    return kernels.unframe(words, words.size // _ROW_WORDS * _ROW_BYTES)


def full(page: np.ndarray) -> RowSparseNDArray:
    """A page in all rows, which a server must have to be pulled from."""
    return framed(page, _ROWS)


class Pages:
    """The worker's end of the key in which pages travel to and from a server.

    Parameters
    ----------
    kv : KVStore
    key : int
    """

    def __init__(self, kv: KVStore, key: int) -> None:
        self._kv, self.key = kv, key
        self._nothing = mx.nd.sparse.zeros("row_sparse", _SHAPE)
        self._pulled: Optional[RowSparseNDArray] = None

    def first(self) -> RowSparseNDArray:
        """What the server is to store first."""
        return full(np.empty(0, np.uint8))

    def push(self, page: Optional[np.ndarray] = None) -> None:
        """Send a page, if this worker has it; all push, and wait before they do it again."""
        self._kv.push(self.key, self._nothing if page is None else framed(page))

    def ask(self) -> None:
        """Begin to fetch the page that the server has laid ready."""
        if self._pulled is None:
            self._pulled = mx.nd.sparse.zeros("row_sparse", _SHAPE)
            self._all_rows = mx.nd.arange(_ROWS, dtype="int64")
        self._kv.row_sparse_pull(self.key, out=self._pulled, row_ids=self._all_rows)

    def answer(self) -> np.ndarray:
        """What was asked for."""
        return unframed(self._pulled)

"""Pages of bytes that a worker and a server exchange in bulk, as rows of a row_sparse array.

Only one worker pushes the rows of a page; the others push no rows. The bytes are framed as ordinary
floats, because MXNet's server adds up the pushes of all workers.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray.sparse import RowSparseNDArray

from .... import kernels
from ...exchange.exchange import States
from .. import archive

_ROWS, _ROW_WORDS = 256, 4096
_ROW_BYTES = kernels.frame_bytes(_ROW_WORDS)
_SHAPE = (_ROWS, _ROW_WORDS)
PAGE_BYTES = _ROWS * _ROW_BYTES

Layouts = Sequence[Mapping[int, archive.Layouts]]
"""For each server, the layouts of its states by key."""


def framed(page: np.ndarray, rows: int | None = None) -> RowSparseNDArray:
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
        self._pulled: RowSparseNDArray | None = None

    def first(self) -> RowSparseNDArray:
        return full(np.empty(0, np.uint8))

    def push(self, page: np.ndarray | None = None) -> None:
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


class ServerStates:
    """Moves the states of the servers' aggregators to and from a checkpoint, in pages."""

    def __init__(self, pages: Sequence[Pages], command: Callable[[str, Any], None]) -> None:
        self._pages = pages  # of each server
        self._command = command  # sends all servers an action and a request

    def fetch(self, keys: Sequence[int], layouts: Layouts) -> Iterator[States]:
        """Yield the states of these keys, in their order. Only one worker calls it."""
        joiners = [archive.Joiner(of_server) for of_server in layouts]
        arrived: dict[int, States] = {
            key: [{} for _ in chunks]
            for of_server in layouts
            for key, chunks in of_server.items()
            if not archive.num_bytes(chunks)
        }
        request: dict[str, Any] = {"keys": list(keys)}
        for key in keys:
            while key not in arrived:
                self._command("save", request)
                request = {}
                asked = [number for number, joiner in enumerate(joiners) if joiner.left]
                for number in asked:
                    self._pages[number].ask()
                for number in asked:
                    arrived.update(joiners[number].add(self._pages[number].answer()))
            yield arrived.pop(key)

    def give(
        self,
        keys: Sequence[int],
        layouts: Layouts,
        states: list[Iterable[States]] | None,
    ) -> None:
        """Send states to the servers, which continue from them. All workers call it.

        `states` has the states of each server's keys, in their order. One worker has it; the others
        pass None.
        """
        cutters = [archive.Cutter(iter(of_server)) for of_server in states or []]
        if cutters:
            self._command("load", {"keys": list(keys)})
        left = [sum(map(archive.num_bytes, of_server.values())) for of_server in layouts]
        while any(left):
            for number, bytes_left in enumerate(left):
                if bytes_left:
                    self._pages[number].push(cutters[number].page(PAGE_BYTES) if cutters else None)
            mx.nd.waitall()
            left = [max(0, bytes_left - PAGE_BYTES) for bytes_left in left]

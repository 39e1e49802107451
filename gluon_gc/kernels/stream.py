"""The random stream: jumps ahead."""

from __future__ import annotations

import numpy as np

from .library import address_of, declare, library, pointer, size

declare("stream_jump", None, pointer, size)
declare("stream_jump_to_worker", None, pointer, size)


def stream_jump(stream: np.ndarray, count: int) -> None:
    """Move a stream, uint64, shape (2,), on by ``count`` draws (less than 2^64), in place."""
    library.gluon_gc_stream_jump(address_of("stream", stream, 2, np.uint64, writes=True), count)


def stream_jump_to_worker(stream: np.ndarray, worker: int) -> None:
    """Move a stream, uint64, shape (2,), on by ``worker`` * 2^64 draws, in place."""
    address = address_of("stream", stream, 2, np.uint64, writes=True)
    library.gluon_gc_stream_jump_to_worker(address, worker)

"""The initial states of random streams, which must be the same on all workers."""

from __future__ import annotations

import os
from typing import Callable, Iterable, Optional

from ..compression import stream
from .plan import Chunk

_ENTROPY_BYTES = 16


class StreamStarts:
    """Computes the initial state of each chunk's random stream.

    Streams without a seed are derived from random bytes of rank 0. `of_root` takes this worker's
    bytes and returns those of rank 0. All workers call it together.
    """

    def __init__(self, of_root: Callable[[bytes], bytes]) -> None:
        self._of_root, self._entropy = of_root, b""

    def draw(self, chunks: Iterable[Chunk]) -> None:
        """Get rank 0's random bytes if a chunk is the first to need them. All workers call this."""
        compressors = {chunk.params.compressor for chunk in chunks if chunk.params is not None}
        if not self._entropy and any(c.traits.draws and c.seed is None for c in compressors):
            self._entropy = self._of_root(os.urandom(_ENTROPY_BYTES))

    def start(
        self, chunk: Chunk, node: Optional[int], index: int, begin: int
    ) -> Optional[stream.State]:
        """The initial state of a node's stream for a chunk. None if its compressor does not draw.

        `draw` must have been called with the chunk before. `node` is the rank of a worker, or None
        for the aggregator. `index` is the parameter's position in its trainer, and `begin` the
        first element of the chunk in the parameter.
        """
        if not chunk.params.compressor.traits.draws:
            return None
        return stream.start(chunk.params, chunk.size, node, index, begin, self._entropy)

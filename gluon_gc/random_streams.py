"""Where the random streams of compressors start: at the same places on all workers."""

from __future__ import annotations

import os
from typing import Callable, Iterable, Optional

from .compression import stream
from .plan import Chunk

_ENTROPY_BYTES = 16


class StreamStarts:
    """Gives the start of each chunk's random stream.

    Streams without a seed start from random bytes that all workers share.

    Parameters
    ----------
    of_root : callable
        Returns rank 0's bytes, given each worker's own; all workers call it together.
    """

    def __init__(self, of_root: Callable[[bytes], bytes]) -> None:
        self._of_root, self._entropy = of_root, b""

    def draw(self, chunks: Iterable[Chunk]) -> None:
        """Share random bytes if a chunk needs them first; all workers call this together."""
        compressors = {chunk.params.compressor for chunk in chunks if chunk.params is not None}
        if not self._entropy and any(c.traits.draws and c.seed is None for c in compressors):
            self._entropy = self._of_root(os.urandom(_ENTROPY_BYTES))

    def start(
        self, chunk: Chunk, node: Optional[int], index: int, begin: int
    ) -> Optional[stream.State]:
        """The start of a node's stream for a chunk; None if its compressor does not draw.

        `draw` must have been called with the chunk.

        Parameters
        ----------
        chunk : Chunk
            With a compressor.
        node : int or None
            The number of a worker; None: the aggregator.
        index, begin : int
            The number of the parameter, and the element that the chunk begins at.
        """
        if not chunk.params.compressor.traits.draws:
            return None
        return stream.start(chunk.params, chunk.size, node, index, begin, self._entropy)

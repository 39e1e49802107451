"""Sums compressed gradients: what a server does, and what `local` does in the worker's process."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence

import numpy as np
from mxnet.ndarray import NDArray

from ..compression import Codec, CompressionParams


class Aggregator:
    """Decodes and sums the payloads of a key, and compresses the sum with its own feedback.

    Parameters
    ----------
    threads : int
        Threads that one sum may use.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._codecs: Dict[int, Codec] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._codecs

    def add(
        self,
        key: int,
        params: CompressionParams,
        size: int,
        dtype: str,
        start: Optional[Sequence[int]] = None,
    ) -> None:
        """Expect compressed gradients of `size` elements under `key`.

        `start` is as in `Codec`.
        """
        self._codecs[key] = Codec(params.aggregators, size, dtype, start)

    def reduce(self, key: int, payloads: NDArray) -> NDArray:
        """The payload of the sum of `payloads`, uint8, shape (workers, bytes), in row order."""
        return self._codecs[key].aggregate(payloads, self._threads)

    def state(self, key: int) -> Dict[str, np.ndarray]:
        """What a checkpoint keeps of `key`."""
        return self._codecs[key].state()

    def load_state(self, key: int, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self._codecs[key].load_state(state)

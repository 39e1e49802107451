"""The backend without a network: one process, which is its own aggregator."""

from __future__ import annotations

from typing import Dict, Mapping, Sequence

import numpy as np
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

from .aggregator import Aggregator
from .base import CompressingKVStore
from .gradient import Gradients
from .plan import Chunk


@KVStoreBase.register
class GluonGCLocal(CompressingKVStore):
    """One worker that compresses, aggregates, compresses and decompresses as a cluster would.

    One worker with it gets bit for bit what one worker with one server gets.
    """

    type = "local"

    def __init__(self) -> None:
        super().__init__()
        self._aggregator = Aggregator()
        self._keys: Dict[Chunk, int] = {}

    def _open(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            key = self._keys[chunk] = len(self._keys)
            if chunk.aggregated:
                start = self._start(chunk, node=self.num_workers)
                self._aggregator.add(key, chunk.params, chunk.size, chunk.dtype, start)

    def _exchange(self, chunks: Sequence[Chunk], gradients: Gradients, priority: int) -> None:
        sent = [self._encoded(chunk, self._values(chunk, gradients)) for chunk in chunks]
        for chunk, array in zip(chunks, sent):
            if chunk.aggregated:
                array = self._aggregator.reduce(self._keys[chunk], array.reshape((1, -1)))
            self._deliver(chunk, array, gradients)

    def broadcast_all(self, arrays: Sequence[NDArray], root_rank: int) -> None:
        if root_rank != 0:
            raise ValueError(f"root_rank must be 0 with one worker, got {root_rank}")

    def _keeps_aggregator(self, chunk: Chunk) -> bool:
        return chunk.aggregated

    def _aggregator_states(self, chunks: Sequence[Chunk]) -> Dict[Chunk, Dict[str, np.ndarray]]:
        return {chunk: self._aggregator.state(self._keys[chunk]) for chunk in chunks}

    def _load_aggregator_state(self, chunk: Chunk, state: Mapping[str, np.ndarray]) -> None:
        self._aggregator.load_state(self._keys[chunk], state)

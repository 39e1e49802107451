"""The residuals and the momentum of a message's chunks."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from ... import kernels
from ..engine.memory import lent


class MessageMemory:
    """Arrays in which the codecs of a message keep their state between steps.

    Each array holds the parts of all chunks side by side. If steps may be taken back, there are two
    sets of arrays: a step reads one and writes the other.

    Parameters
    ----------
    codecs : sequence of kernels.Codec
        One for each chunk.
    dtype : str

    Attributes
    ----------
    arrays : list of NDArray
        The state after the last step.
    earlier : list of NDArray
        The state before the last step, if `keep_earlier` was called; else empty.
    """

    def __init__(self, codecs: Sequence[kernels.Codec], dtype: str) -> None:
        sizes = [[codec.momentum for codec in codecs]]
        sizes += [list(memory) for memory in zip(*(codec.memory for codec in codecs))]
        self._sizes = [chunk_sizes for chunk_sizes in sizes if any(chunk_sizes)]
        self._dtype = dtype
        self.arrays: List[NDArray] = [mx.nd.zeros(sum(s), dtype=dtype) for s in self._sizes]
        self.earlier: List[NDArray] = []

    @property
    def num_bytes(self) -> int:
        """The size of one set of arrays."""
        return sum(array.size for array in self.arrays) * np.dtype(self._dtype).itemsize

    def use(self, memory: np.ndarray) -> None:
        """Use this memory for the arrays from now on: `num_bytes` zeros, uint8, on the CPU."""
        self.arrays = self._in(memory)

    def _in(self, memory: np.ndarray) -> List[NDArray]:
        """A set of arrays in this memory."""
        ends = np.cumsum([array.size for array in self.arrays])[:-1]
        pieces = np.split(memory.view(self._dtype), ends) if self.arrays else []
        return [lent(piece) for piece in pieces]

    def move_to(self, gpu: Optional[mx.Context]) -> None:
        """Move the arrays to a GPU, or to the CPU if None."""
        context = gpu or mx.cpu()
        self.arrays = [array.as_in_context(context) for array in self.arrays]
        self.earlier = [array.as_in_context(context) for array in self.earlier]

    def keep_earlier(self, memory: Optional[np.ndarray] = None) -> None:
        """Keep the state before each step from now on, so that a step can be taken back.

        `memory`, if given, holds the second set of arrays, as in `use`.
        """
        if memory is None:
            self.earlier = [mx.nd.empty(a.shape, a.context, a.dtype) for a in self.arrays]
        else:
            self.earlier = self._in(memory)

    def swap(self) -> None:
        """Make the earlier state the current one: to begin a step, and to take it back."""
        if self.earlier:
            self.arrays, self.earlier = self.earlier, self.arrays

    def saved(self, codecs: Sequence[kernels.Codec]) -> List[Dict[str, np.ndarray]]:
        """For a checkpoint, each chunk's "residual" and "momentum", if it has them."""
        states = []
        for codec, kept in zip(codecs, self._of_chunks(codecs, self._as_numpy())):
            state = {}
            if codec.memory:
                state["residual"] = codec.residual(kept)
            if codec.momentum:
                state["momentum"] = kept.momentum.copy()
            states.append(state)
        return states

    def load(
        self, codecs: Sequence[kernels.Codec], states: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Restore a result of `saved`."""
        arrays = self._as_numpy()
        for codec, kept, state in zip(codecs, self._of_chunks(codecs, arrays), states):
            if codec.memory:
                codec.restore(kept, np.ascontiguousarray(state["residual"]))
            if codec.momentum:
                kept.momentum[:] = state["momentum"]
        for array, values in zip(self.arrays, arrays):
            array[:] = values

    def _as_numpy(self) -> List[np.ndarray]:
        return [array.asnumpy() for array in self.arrays]

    def _of_chunks(
        self, codecs: Sequence[kernels.Codec], arrays: Sequence[np.ndarray]
    ) -> Iterator[kernels.State]:
        """Each chunk's part of all arrays."""
        ends = [np.cumsum(sizes)[:-1] for sizes in self._sizes]
        pieces = [np.split(array, end) for array, end in zip(arrays, ends)]
        for i, codec in enumerate(codecs):
            parts = [piece[i] for piece in pieces]
            momentum = parts.pop(0) if codec.momentum else None
            yield kernels.State(momentum, tuple(parts))

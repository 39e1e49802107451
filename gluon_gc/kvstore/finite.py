"""Looks for NaNs and infinities in what comes back of a chunk that travels uncompressed."""

from __future__ import annotations

from typing import Collection, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet.ndarray import NDArray

from .. import operators
from .plan import Chunk, Tensor


class FiniteCheck:
    """The check of one plain chunk, which all workers make alike, of values that are the same.

    Parameters
    ----------
    slices : list of (str, int, int, str)
        A tensor, where it begins and ends in the chunk, and what an error calls it; "": no error.
    """

    def __init__(self, slices: List[Tuple[str, int, int, str]]) -> None:
        self._slices = slices
        self._meter = mx.nd.zeros(len(operators.METER), dtype="float64")

    @classmethod
    def of(cls, chunk: Chunk, tensors: Mapping[str, Tensor]) -> Optional[FiniteCheck]:
        """The check that a chunk of these tensors needs, if any."""
        slices, begin = [], 0
        for piece in chunk.slices:
            tensor = tensors[piece.tensor]
            if tensor.floating and tensor.on_nonfinite != "propagate":
                slices.append((piece.tensor, begin, begin + piece.size, tensor.refused))
            begin += piece.size
        return cls(slices) if slices and chunk.params is None else None

    def check(self, values: NDArray, taking_part: Collection[str]) -> None:
        """Check the values of the tensors that take part in this step; returns at once."""
        slices = [s for s in self._slices if s[0] in taking_part]
        if slices:
            _, begins, ends, refused = zip(*slices)
            operators.check_finite(values, self._meter, list(zip(begins, ends)), refused)

    def nonfinite(self) -> int:
        """How often something was found; waits until all checks are done."""
        return int(self._meter.asnumpy()[operators.METER.index("nonfinite")])

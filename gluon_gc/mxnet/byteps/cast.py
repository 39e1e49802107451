"""Compression: casts for hand-written exchanges, as in byteps.mxnet."""

from __future__ import annotations

import numpy as np
from mxnet.ndarray import NDArray


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, type | None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: NDArray, ctx: type | None) -> NDArray:
        return tensor


class FP16Compressor:
    """Casts floating-point tensors to float16, and back to their original dtype."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, type | None]:
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor, None
        return tensor.astype("float16", copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: NDArray, ctx: type | None) -> NDArray:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """The casts by name: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor

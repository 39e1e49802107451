"""Compression: BytePS's choice between float16 and no compression."""

from __future__ import annotations

from typing import Any, Mapping

import torch


class NoneCompressor:
    """Leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """Casts float32 and float64 tensors to float16, and back to their own dtype."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        if not tensor.is_floating_point() or tensor.dtype.itemsize <= 2:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The two compressors: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor


def params_of(
    compression: Any, compression_params: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    """Return the compression_params for BytePS's argument `compression`."""
    if isinstance(compression, Mapping):
        params: Mapping[str, Any] | None = compression
    elif _is(compression, Compression.fp16):
        params = {"fp16": True}
    elif compression is None or _is(compression, Compression.none):
        params = None
    else:
        raise TypeError(
            "compression must be Compression.none, Compression.fp16 or a dict of "
            f"compression_params, got {compression!r}"
        )
    if params is not None and compression_params is not None:
        raise ValueError(
            f"compression and compression_params are the same; give one of them, got {params!r} "
            f"and {compression_params!r}"
        )
    return compression_params if params is None else params


def _is(compression: Any, compressor: type) -> bool:
    return compression is compressor or type(compression) is compressor

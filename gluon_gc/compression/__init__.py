"""The compressors, what they are told, and the state that error feedback keeps."""

from . import bytegrad, dithering, onebit, randomk, stream, topk  # noqa: F401  (registers them)
from .base import Compressor, registry
from .codec import Codec
from .params import CompressionParams, options, parse

__all__ = ["Codec", "CompressionParams", "Compressor", "options", "parse", "registry", "stream"]

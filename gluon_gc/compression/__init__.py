"""The compressors, what they are told, and the state that error feedback keeps."""

# Importing a compressor registers it.
from . import bytegrad, dgc, dithering, onebit, randomk, stream, topk  # noqa: F401
from .base import Compressor, registry
from .codec import Codec, state_layout
from .option import options
from .params import CompressionParams, parse, warn_of_ignored

__all__ = [
    "Codec",
    "CompressionParams",
    "Compressor",
    "options",
    "parse",
    "registry",
    "state_layout",
    "stream",
    "warn_of_ignored",
]

"""The compressors and their options (compression_params). Needs no framework."""

from importlib import import_module
from pkgutil import iter_modules

from .. import kernels
from .auto import candidates
from .base import Compressor, registry
from .known_keys import keys, users_of, warn_of_ignored
from .params import CompressionParams, parse, warn_of_plain_adam

for _module in iter_modules(__path__):  # a compressor registers itself when it is imported
    import_module(f"{__name__}.{_module.name}")
assert tuple(sorted(registry)) == kernels.names(), "each compressor has one file in each language"

__all__ = [
    "CompressionParams",
    "Compressor",
    "candidates",
    "keys",
    "parse",
    "registry",
    "users_of",
    "warn_of_ignored",
    "warn_of_plain_adam",
]

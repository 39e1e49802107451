"""The backends, and the KVStores that MXNet can create from them.

Importing this package registers the KVStores with MXNet.
"""

from . import by_name
from .plugin import (
    CompressingKVStore,
    GluonGCHorovod,
    GluonGCLocal,
    GluonGCMachine,
    GluonGCParameterServer,
)

__all__ = [
    "CompressingKVStore",
    "GluonGCHorovod",
    "GluonGCLocal",
    "GluonGCMachine",
    "GluonGCParameterServer",
]

by_name.heed(__all__[1:])

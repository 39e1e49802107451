"""The backends, and MXNet's KVStores over them. Importing it makes the stores known to MXNet."""

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

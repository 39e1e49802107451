"""The backends: how compressed gradients travel. Importing it makes them known to mx.kv.create."""

from .local import GluonGCLocal
from .parameter_server import GluonGCParameterServer

__all__ = ["GluonGCLocal", "GluonGCParameterServer"]

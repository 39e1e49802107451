"""The backends: how compressed gradients travel. Importing it makes them known to mx.kv.create."""

from .horovod import GluonGCHorovod
from .local import GluonGCLocal
from .parameter_server import GluonGCParameterServer

__all__ = ["GluonGCHorovod", "GluonGCLocal", "GluonGCParameterServer"]

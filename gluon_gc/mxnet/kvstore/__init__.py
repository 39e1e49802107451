"""The backends: how compressed gradients travel. Importing it makes them known to MXNet."""

from . import by_name
from .horovod.store import GluonGCHorovod
from .local import GluonGCLocal
from .one_machine.store import GluonGCMachine
from .parameter_server.store import GluonGCParameterServer

__all__ = ["GluonGCHorovod", "GluonGCLocal", "GluonGCMachine", "GluonGCParameterServer"]

by_name.heed(__all__)

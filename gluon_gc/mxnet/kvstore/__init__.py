"""The backends, and the KVStores that MXNet can create from them.

Importing this package registers the KVStores with MXNet.
"""

from . import plugin
from .plugin import CompressingKVStore as CompressingKVStore
from .plugin import GluonGCHorovod as GluonGCHorovod
from .plugin import GluonGCLocal as GluonGCLocal
from .plugin import GluonGCMachine as GluonGCMachine
from .plugin import GluonGCParameterServer as GluonGCParameterServer

plugin.accept_names()

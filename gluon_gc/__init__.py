"""Gradient compression for data-parallel training, with the API of byteps.mxnet.

The public names come from `gluon_gc.mxnet`. That package is imported together with MXNet, or when
one of the names is first used, so `import gluon_gc` itself loads no framework.
"""

from importlib import import_module
from typing import Any

from . import after_mxnet, env
from .env import ConfigurationError as ConfigurationError
from .version import __version__ as __version__

env.prepare_engine()  # MXNet reads these variables once, when it is imported

_HOMES = {
    "mailbox": ("report_loss", "rounds", "worker_name", "worker_seed"),
    "mxnet.byteps.cast": ("Compression",),
    "mxnet.byteps.collective": ("allreduce", "average_statistics", "barrier"),
    "mxnet.byteps.optimizer": ("DistributedOptimizer",),
    "mxnet.byteps.push_pull": ("broadcast_parameters", "byteps_declare_tensor", "byteps_push_pull"),
    "mxnet.byteps.runtime": (
        "init",
        "local_rank",
        "local_size",
        "rank",
        "resume",
        "shutdown",
        "size",
        "suspend",
    ),
    "mxnet.trainer.trainer": ("DistributedTrainer", "report"),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["ConfigurationError", "__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gluon_gc' has no attribute '{name}'")
    value = getattr(import_module(f"gluon_gc.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list:
    return __all__


after_mxnet.register()

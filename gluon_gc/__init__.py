"""Gradient compression for data-parallel MXNet Gluon, with the API of byteps.mxnet."""

from . import env, requirements

env.prepare_engine()  # before MXNet reads it
requirements.import_mxnet()

from .cast import Compression  # noqa: E402
from .env import ConfigurationError  # noqa: E402
from .optimizer import DistributedOptimizer  # noqa: E402
from .runtime import (  # noqa: E402
    broadcast_parameters,
    byteps_declare_tensor,
    byteps_push_pull,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from .trainer import DistributedTrainer  # noqa: E402
from .version import __version__  # noqa: E402

__all__ = [
    "Compression",
    "ConfigurationError",
    "DistributedOptimizer",
    "DistributedTrainer",
    "__version__",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]

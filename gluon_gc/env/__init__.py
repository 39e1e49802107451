"""Reads environment variables. No other package of gluon_gc reads them.

An empty variable counts as not set. This package does not import MXNet, because bpslaunch must
start fast, and must read DMLC_ROLE before MXNet does.
"""

from .exports import (
    export_for_ps_lite,
    export_local,
    exported_for_ps_lite,
    for_child,
    for_service,
    prepare_engine,
    prepare_exchanges,
    prepare_gloo,
    prepare_horovod,
    resize,
)
from .reading import (
    ConfigurationError,
    get,
    is_set,
    misspelt,
    server_threads,
    shared_settings,
    traced_steps,
)
from .roles import (
    Cluster,
    cluster,
    distributed,
    heartbeat_timeout,
    is_silent,
    is_worker,
    machine,
    of_torchrun,
    one_machine,
    several_on_some_nodes,
    shares_machine,
    under_horovod,
)
from .variables import BIGARRAY_BOUND, KINDS, cores

__all__ = [
    "BIGARRAY_BOUND",
    "Cluster",
    "ConfigurationError",
    "KINDS",
    "cluster",
    "cores",
    "distributed",
    "export_for_ps_lite",
    "export_local",
    "exported_for_ps_lite",
    "for_child",
    "for_service",
    "get",
    "heartbeat_timeout",
    "is_set",
    "is_silent",
    "is_worker",
    "machine",
    "misspelt",
    "of_torchrun",
    "one_machine",
    "prepare_engine",
    "prepare_exchanges",
    "prepare_gloo",
    "prepare_horovod",
    "resize",
    "server_threads",
    "shared_settings",
    "several_on_some_nodes",
    "shares_machine",
    "traced_steps",
    "under_horovod",
]

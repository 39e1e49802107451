"""Variables that are set for MXNet, ps-lite, Horovod, Gloo, and processes to be started."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Iterator, Mapping, Optional

from ..variables import BIGARRAY_BOUND
from .placement import Cluster
from .reading import get, is_set

_DEFAULTS_OF_OURS = (
    "PS_HEARTBEAT_INTERVAL",
    "PS_HEARTBEAT_TIMEOUT",
    "PS_RESEND_TIMEOUT",
)


def prepare_engine() -> None:
    """Set variables that MXNet and ps-lite read once, unless the user did.

    Call it before either starts.
    """
    threads = get("BYTEPS_THREADPOOL_SIZE")
    values = {"MXNET_CPU_TEMP_COPY": _copies("MXNET_CPU_TEMP_COPY")}
    if threads:
        values["MXNET_CPU_WORKER_NTHREADS"] = threads
    for name in _DEFAULTS_OF_OURS:
        values[name] = get(name)
    for name, value in values.items():
        if not is_set(name):
            os.environ[name] = str(value)


def prepare_exchanges() -> None:
    """Set how many exchanges MXNet's engine runs at a time, unless the user did.

    MXNet reads the variable at the first operator. It also decides which numbers MXNet draws after
    a seed, so `import gluon_gc` must not set it.
    """
    if not is_set("MXNET_CPU_PARALLEL_RAND_COPY"):
        copies = _copies("MXNET_CPU_PARALLEL_RAND_COPY")
        os.environ["MXNET_CPU_PARALLEL_RAND_COPY"] = str(copies)


def _copies(name: str) -> int:
    return max(get(name), get("BYTEPS_THREADPOOL_SIZE"))


def prepare_horovod() -> None:
    """Set the seconds after which Horovod warns of a stall and gives up, unless the user did.

    Call it before Horovod starts.
    """
    warn_after, give_up_after = get("GLUON_GC_STALL_SECONDS"), get("GLUON_GC_TIMEOUT")
    first = min(filter(None, (warn_after, give_up_after)), default=0)
    values = {"STALL_CHECK_TIME_SECONDS": first, "STALL_SHUTDOWN_TIME_SECONDS": give_up_after}
    for name, value in (values if first else {"STALL_CHECK_DISABLE": 1}).items():
        os.environ.setdefault(f"HOROVOD_{name}", str(value))


def prepare_gloo() -> None:
    """Set the network interface that Gloo uses, unless the user did.

    Call it before a process group is made.
    """
    interface = get("DMLC_INTERFACE")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def export_local(rank: Optional[int], size: Optional[int]) -> None:
    """Set LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun does, if they are known and not set."""
    for name, number in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        if number is not None and not is_set(name):
            os.environ[name] = str(number)


def resize(num_worker: int, num_server: int, worker_id: Optional[int] = None) -> None:
    """Set the size of the cluster, which `cluster` reads; the address stays."""
    os.environ.update(DMLC_NUM_WORKER=str(num_worker), DMLC_NUM_SERVER=str(num_server))
    if worker_id is not None:
        os.environ["DMLC_WORKER_ID"] = str(worker_id)


def export_for_ps_lite(cluster: Cluster) -> None:
    """Set the variables that ps-lite reads. Call it just before mx.kv.create.

    Afterwards DMLC_NUM_WORKER counts processes, as ps-lite does. A server or a scheduler must keep
    these values.
    """
    os.environ.update(_for_ps_lite(cluster))


@contextmanager
def exported_for_ps_lite(cluster: Cluster) -> Iterator[None]:
    """Call `export_for_ps_lite`, and undo it when the block ends: ps-lite has started then."""
    before = {name: os.environ.get(name) for name in _for_ps_lite(cluster)}
    export_for_ps_lite(cluster)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _for_ps_lite(cluster: Cluster) -> dict[str, str]:
    return {
        "DMLC_ROLE": cluster.role,
        "DMLC_PS_ROOT_URI": cluster.root_uri,
        "DMLC_PS_ROOT_PORT": str(cluster.root_port),
        "DMLC_NUM_WORKER": str(cluster.total_workers),
        "DMLC_NUM_SERVER": str(cluster.num_server),
        "DMLC_PS_VAN_TYPE": get("DMLC_PS_VAN_TYPE"),
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(BIGARRAY_BOUND),
    }


def for_child(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """The environment of a child process: this one's with changes. None removes a variable."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def for_service(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """As `for_child`, but PYTHONPATH loses its empty entries, which mean the current directory."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return for_child({**changes, "PYTHONPATH": os.pathsep.join(filter(None, entries)) or None})

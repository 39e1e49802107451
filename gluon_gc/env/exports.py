"""Sets environment variables for MXNet, ps-lite, Horovod, Gloo and child processes."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Iterator, Mapping, Optional

from .reading import get, is_set
from .roles import Cluster
from .variables import BIGARRAY_BOUND


def prepare_engine() -> None:
    """Set variables that MXNet and ps-lite read only once, unless the user has set them.

    Call it before MXNet is imported.
    """
    threads = get("BYTEPS_THREADPOOL_SIZE")
    values = {"MXNET_CPU_TEMP_COPY": _copies("MXNET_CPU_TEMP_COPY")}
    if threads:
        values["MXNET_CPU_WORKER_NTHREADS"] = threads
    for name in ("PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT", "PS_RESEND_TIMEOUT"):
        values[name] = get(name)
    for name, value in values.items():
        if not is_set(name):
            os.environ[name] = str(value)


def prepare_exchanges() -> None:
    """Set how many exchanges MXNet's engine runs in parallel, unless the user has set it.

    MXNet reads the variable at the first operator. The variable also changes the random numbers
    that MXNet draws after a seed, so `import gluon_gc` must not set it.
    """
    if not is_set("MXNET_CPU_PARALLEL_RAND_COPY"):
        copies = _copies("MXNET_CPU_PARALLEL_RAND_COPY")
        os.environ["MXNET_CPU_PARALLEL_RAND_COPY"] = str(copies)


def _copies(name: str) -> int:
    return max(get(name), get("BYTEPS_THREADPOOL_SIZE"))


def prepare_horovod() -> None:
    """Set when Horovod warns of a stall and when it gives up, unless the user has set it.

    Call it before `hvd.init()`.
    """
    warn_after, give_up_after = get("GLUON_GC_STALL_SECONDS"), get("GLUON_GC_TIMEOUT")
    first = min(filter(None, (warn_after, give_up_after)), default=0)
    values = {"STALL_CHECK_TIME_SECONDS": first, "STALL_SHUTDOWN_TIME_SECONDS": give_up_after}
    for name, value in (values if first else {"STALL_CHECK_DISABLE": 1}).items():
        os.environ.setdefault(f"HOROVOD_{name}", str(value))


def prepare_gloo() -> None:
    """Set the network interface of Gloo, unless the user has set it.

    Call it before a process group is created.
    """
    interface = get("DMLC_INTERFACE")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def export_local(rank: Optional[int], size: Optional[int]) -> None:
    """Set LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun does, if they are known and not set."""
    for name, number in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        if number is not None and not is_set(name):
            os.environ[name] = str(number)


def resize(num_worker: int, num_server: int, worker_id: Optional[int] = None) -> None:
    """Set the size of the cluster for `cluster`. The address of the scheduler stays."""
    os.environ.update(DMLC_NUM_WORKER=str(num_worker), DMLC_NUM_SERVER=str(num_server))
    if worker_id is not None:
        os.environ["DMLC_WORKER_ID"] = str(worker_id)


def export_for_ps_lite(cluster: Cluster) -> None:
    """Set the variables that ps-lite reads. Call it immediately before mx.kv.create.

    Afterwards DMLC_NUM_WORKER is the number of worker processes, as ps-lite needs it, instead of
    the number of machines. Servers and schedulers must keep these values.
    """
    os.environ.update(_for_ps_lite(cluster))


@contextmanager
def exported_for_ps_lite(cluster: Cluster) -> Iterator[None]:
    """Call `export_for_ps_lite`, and undo it after the block, in which ps-lite must start."""
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
    """The environment of a child process: this one with changes. None removes a variable."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def for_service(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """Like `for_child`, without empty entries of PYTHONPATH: they mean the current directory."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return for_child({**changes, "PYTHONPATH": os.pathsep.join(filter(None, entries)) or None})

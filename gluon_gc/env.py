"""Reads the environment, and is the only module that does: every variable, its default, its meaning.

It imports no MXNet, so that the launcher starts fast and can run before a role is taken.
An empty variable counts as one that is not set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

REQUIRED = object()
"""The default of a variable that must be set when it is read."""


class ConfigurationError(ValueError):
    """The environment is missing a variable, or holds a wrong or contradictory one."""


def cores() -> int:
    """number of cores"""
    return len(os.sched_getaffinity(0))


def _few_cores() -> int:
    """number of cores, at most 4"""
    return min(4, cores())


@dataclass(frozen=True)
class Variable:
    """One row of the table.

    Parameters
    ----------
    name : str
    default : int, str, bool, None, REQUIRED or a function
        What `get` returns when the variable is not set. None says that there is nothing to return;
        a function is called, and its docstring says what it gives.
    kind : str
        A key of `KINDS`.
    meaning : str
        What the variable decides, as the documentation prints it.
    older : str, optional
        An older spelling, read when `name` is not set.
    """

    name: str
    default: Any
    kind: str
    meaning: str
    older: Optional[str] = None


def _number(low: int, high: Optional[int] = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


_ROLES = ("worker", "server", "scheduler")
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

KINDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "text": ("text", str),
    "count": ("a whole number >= 0", _number(0)),
    "positive": ("a positive whole number", _number(1)),
    "port": ("a port from 1 to 65535", _number(1, 65535)),
    "flag": ("0 or 1", lambda text: bool(_number(0, 1)(text))),
    "role": ("one of " + ", ".join(_ROLES), _one_of(*_ROLES)),
    "level": ("one of " + ", ".join(_LEVELS), lambda text: _one_of(*_LEVELS)(text.upper())),
}
"""Kind to the rule it states in an error, and the function that reads it."""

TABLE = (
    # The cluster, as MXNet and BytePS name it.
    Variable("DMLC_ROLE", REQUIRED, "role", "what this process is: worker, server or scheduler"),
    Variable("DMLC_PS_ROOT_URI", REQUIRED, "text", "the address of the scheduler"),
    Variable("DMLC_PS_ROOT_PORT", REQUIRED, "port", "the port of the scheduler"),
    Variable("DMLC_NUM_WORKER", REQUIRED, "positive", "how many worker machines there are"),
    Variable("DMLC_NUM_SERVER", REQUIRED, "count", "how many servers there are"),
    Variable("DMLC_WORKER_ID", REQUIRED, "count", "which worker machine this is, from 0"),
    Variable("DMLC_INTERFACE", None, "text", "the network interface to use; by default the first that is up"),
    Variable("DMLC_NODE_HOST", None, "text", "this node's address, in place of the interface's"),
    Variable("BYTEPS_LOCAL_RANK", 0, "count", "which worker process of its machine this is; bpslaunch sets it"),
    Variable(
        "BYTEPS_LOCAL_SIZE", 1, "positive",
        "worker processes a machine; bpslaunch sets it for workers. Where it is not 1, "
        "set it for the servers and the scheduler too",
    ),
    Variable("BYTEPS_FORCE_DISTRIBUTED", False, "flag", "1: a single worker uses the parameter server too"),
    Variable("NVIDIA_VISIBLE_DEVICES", None, "text", "devices, comma-separated: bpslaunch starts a worker for each"),
    Variable("CUDA_VISIBLE_DEVICES", None, "text", "bpslaunch sets it to a worker's own device"),
    # What is sent, and by how many threads.
    Variable("BYTEPS_PARTITION_BYTES", 4096000, "positive", "the most float data in one chunk"),
    Variable(
        "BYTEPS_MIN_COMPRESS_BYTES", 0, "count", "smaller tensors travel uncompressed",
        older="BYTEPS_MIN_COMPRESS_BYTE",
    ),
    Variable(
        "BYTEPS_THREADPOOL_SIZE", _few_cores, "count",
        "threads that compress and exchange; 0 leaves MXNet's own default",
    ),
    Variable("BYTEPS_NUMA_ON", False, "flag", "1: bpslaunch binds each worker to a NUMA node with numactl"),
    Variable("BYTEPS_LOG_LEVEL", "WARNING", "level", "the least severe message that is logged"),
    Variable("OMP_NUM_THREADS", None, "positive", "OpenMP threads a process; bpslaunch --local shares out the cores"),
    # Faults.
    Variable("GLUON_GC_CONNECT_TIMEOUT", 60, "positive", "seconds to wait for the scheduler"),
    Variable("PS_HEARTBEAT_INTERVAL", 1, "count", "seconds between two signs of life; 0: none are sent"),
    Variable("PS_HEARTBEAT_TIMEOUT", 10, "positive", "seconds without one after which a node is dead"),
    # For development, and what is set for MXNet.
    Variable("GLUON_GC_LIBRARY", None, "text", "another libgluon_gc.so than the package's own"),
    Variable("MXNET_CPU_WORKER_NTHREADS", None, "positive", "engine threads; set to BYTEPS_THREADPOOL_SIZE"),
    Variable("MXNET_CPU_PARALLEL_RAND_COPY", None, "positive", "one a thread; set to BYTEPS_THREADPOOL_SIZE"),
    Variable("MXNET_CPU_TEMP_COPY", None, "positive", "one a thread; set to BYTEPS_THREADPOOL_SIZE"),
    Variable(
        "MXNET_KVSTORE_BIGARRAY_BOUND", 2**31 - 1, "positive",
        "elements above which MXNet spreads an array over servers; ours are cut already",
    ),
)
_BY_NAME = {variable.name: variable for variable in TABLE}


def _text(variable: Variable) -> tuple[str, str]:
    """The name under which a variable is set and its text, which is empty where it is not set."""
    for name in (variable.name, variable.older):
        text = os.environ.get(name, "").strip() if name else ""
        if text:
            return name, text
    return variable.name, ""


def get(name: str) -> Any:
    """The value of a variable of the table.

    Returns
    -------
    int, bool, str or None
        As its kind says; its default where it is not set.

    Raises
    ------
    ConfigurationError
        It breaks the rule of its kind, or is required and not set.
    KeyError
        The table has no such variable.
    """
    variable = _BY_NAME[name]
    spelling, text = _text(variable)
    if text:
        rule, parse = KINDS[variable.kind]
        try:
            return parse(text)
        except ValueError:
            raise ConfigurationError(f"{spelling} must be {rule}, got {text!r}") from None
    if variable.default is REQUIRED:
        raise ConfigurationError(f"{name} is not set: {variable.meaning}")
    return variable.default() if callable(variable.default) else variable.default


def is_set(name: str) -> bool:
    """Whether a variable of the table is set, by its name or an older spelling."""
    return bool(_text(_BY_NAME[name])[1])


@dataclass(frozen=True)
class Cluster:
    """This process's place in a cluster, checked when made.

    Parameters
    ----------
    role : str
        "worker", "server" or "scheduler".
    root_uri, root_port : str, int
        Where the scheduler listens.
    num_worker, num_server : int
        Worker machines and server processes.
    worker_id : int or None
        Which machine this worker is on; None for the other roles.
    local_rank, local_size : int
        Which worker of its machine this is, and how many a machine has.
    """

    role: str
    root_uri: str
    root_port: int
    num_worker: int
    num_server: int
    worker_id: Optional[int]
    local_rank: int = 0
    local_size: int = 1

    def __post_init__(self) -> None:
        def below(name: str, value: int, limit_name: str, limit: int) -> None:
            if value >= limit:
                raise ConfigurationError(f"{name} must be < {limit_name} ({limit}), got {value}")

        if self.num_server < 1:
            raise ConfigurationError(f"DMLC_NUM_SERVER must be a positive whole number, got {self.num_server}")
        if self.worker_id is not None:
            below("DMLC_WORKER_ID", self.worker_id, "DMLC_NUM_WORKER", self.num_worker)
        below("BYTEPS_LOCAL_RANK", self.local_rank, "BYTEPS_LOCAL_SIZE", self.local_size)

    @property
    def total_workers(self) -> int:
        """Worker processes in all: what ps-lite, unlike BytePS, counts as workers."""
        return self.num_worker * self.local_size

    @property
    def rank(self) -> Optional[int]:
        """This worker among all of them; None for the other roles."""
        return None if self.worker_id is None else self.worker_id * self.local_size + self.local_rank


def distributed() -> bool:
    """Whether this process is a worker of a parameter-server cluster."""
    if not is_set("DMLC_ROLE") or get("DMLC_ROLE") != "worker":
        return False
    return get("DMLC_NUM_WORKER") > 1 or get("DMLC_NUM_SERVER") > 0 or get("BYTEPS_FORCE_DISTRIBUTED")


def cluster(role: Optional[str] = None) -> Cluster:
    """This process's place in its cluster, read before `export_for_ps_lite` changes what it is read from.

    Parameters
    ----------
    role : str, optional
        By default DMLC_ROLE.

    Raises
    ------
    ConfigurationError
        A variable is missing, wrong, or contradicts another.
    """
    role = role or get("DMLC_ROLE")
    return Cluster(
        role=role,
        root_uri=get("DMLC_PS_ROOT_URI"),
        root_port=get("DMLC_PS_ROOT_PORT"),
        num_worker=get("DMLC_NUM_WORKER"),
        num_server=get("DMLC_NUM_SERVER"),
        worker_id=get("DMLC_WORKER_ID") if role == "worker" else None,
        local_rank=get("BYTEPS_LOCAL_RANK"),
        local_size=get("BYTEPS_LOCAL_SIZE"),
    )


def server_threads() -> int:
    """Threads that a server splits an update over: OMP_NUM_THREADS, or the number of cores."""
    return get("OMP_NUM_THREADS") or cores()


def export_for_ps_lite(cluster: Cluster) -> None:
    """Set the variables that ps-lite reads, with workers counted its way; call just before mx.kv.create.

    Afterwards DMLC_NUM_WORKER counts processes, so that `cluster` must not be read again.
    """
    os.environ.update(
        DMLC_ROLE=cluster.role,
        DMLC_PS_ROOT_URI=cluster.root_uri,
        DMLC_PS_ROOT_PORT=str(cluster.root_port),
        DMLC_NUM_WORKER=str(cluster.total_workers),
        DMLC_NUM_SERVER=str(cluster.num_server),
    )


def prepare_engine() -> None:
    """Set, where the user did not, what MXNet and ps-lite read when they start; call before either does."""
    threads = get("BYTEPS_THREADPOOL_SIZE")
    values = {
        name: threads
        for name in ("MXNET_CPU_WORKER_NTHREADS", "MXNET_CPU_PARALLEL_RAND_COPY", "MXNET_CPU_TEMP_COPY")
        if threads
    }
    for name in ("MXNET_KVSTORE_BIGARRAY_BOUND", "PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"):
        values[name] = get(name)
    for name, value in values.items():
        if not is_set(name):
            os.environ[name] = str(value)


def for_child(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """This process's environment with changes, for a process to start; None removes a variable."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}

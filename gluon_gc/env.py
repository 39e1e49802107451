"""Reads the environment, and is the only module that does.

`gluon_gc.variables` and `gluon_gc.variables_of_launchers` have the tables.
It imports no MXNet, so that the launcher starts fast and can run before a role is taken.
An empty variable counts as one that is not set.
"""

from __future__ import annotations

import difflib
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional

from .variables import IGNORED, KINDS, REQUIRED, TABLE, Variable, cores
from .variables_of_launchers import OF_LAUNCHERS


class ConfigurationError(ValueError):
    """The environment is missing a variable, or holds a wrong or contradictory one."""


_BY_NAME = {variable.name: variable for variable in (*TABLE, *OF_LAUNCHERS)}
_DEFAULTS_OF_OURS = (
    "PS_HEARTBEAT_INTERVAL",
    "PS_HEARTBEAT_TIMEOUT",
    "PS_RESEND_TIMEOUT",
)


def _text(variable: Variable) -> tuple[str, str]:
    """The name under which a variable is set and its text, which is empty where it is not set."""
    for name in (variable.name, variable.older):
        text = os.environ.get(name, "").strip() if name else ""
        if text:
            return name, text
    return variable.name, ""


def get(name: str) -> Any:
    """The value of a variable of a table.

    Returns
    -------
    int, bool, str or None
        As its kind says; its default where it is not set.

    Raises
    ------
    ConfigurationError
        It breaks the rule of its kind, or is required and not set.
    KeyError
        No table has such a variable.
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
    """Whether a variable of a table is set, by its name or an older spelling."""
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
        if self.worker_id is None:
            return None
        return self.worker_id * self.local_size + self.local_rank


def misspelt() -> dict[str, Optional[str]]:
    """Variables that are set and nobody reads, with the nearest one that is read.

    One that begins with BYTEPS_, but is near none, may be one of BytePS's that we never heard of.
    """
    stems = {_stem(variable.name): variable.name for variable in TABLE}
    known = {*_BY_NAME, *(variable.older for variable in TABLE), *IGNORED}
    found = {}
    for name in sorted(name for name in os.environ if name not in known):
        if name.startswith(("BYTEPS_", "GLUON_GC_")):
            near = [stems[stem] for stem in difflib.get_close_matches(_stem(name), stems, n=1)]
            if near or name.startswith("GLUON_GC_"):
                found[name] = near[0] if near else None
    return found


def _stem(name: str) -> str:
    """A name without its beginning, which would make all of them alike."""
    return re.sub("^(BYTEPS|DMLC|GLUON_GC|PS)_", "", name)


def one_machine() -> bool:
    """Whether the job is one machine's, which as in BytePS needs nothing from others."""
    return get("DMLC_NUM_WORKER") == 1 and not get("BYTEPS_FORCE_DISTRIBUTED")


def is_worker() -> bool:
    """Whether DMLC_ROLE makes this process a worker."""
    return is_set("DMLC_ROLE") and get("DMLC_ROLE") == "worker"


def distributed() -> bool:
    """Whether this process is a worker of a parameter-server cluster."""
    return is_worker() and not one_machine()


def shares_machine() -> bool:
    """Whether this process is one of several workers of a job that is one machine's."""
    return is_worker() and one_machine() and get("BYTEPS_LOCAL_SIZE") > 1


def under_horovod() -> bool:
    """Whether horovodrun has started this process, or mpirun several of them."""
    sizes = (get(name) or 1 for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    return is_set("HOROVOD_RANK") or max(sizes) > 1


def of_torchrun(name: str) -> Optional[int]:
    """The number that torchrun has in a variable, such as LOCAL_RANK; None: it says nothing."""
    return get(name)


def prepare_gloo() -> None:
    """Set, where the user did not, which network interface Gloo takes: before a group is made."""
    interface = get("DMLC_INTERFACE")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def export_local(rank: Optional[int], size: Optional[int]) -> None:
    """Set LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun does, where they are known and not set."""
    for name, number in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        if number is not None and not is_set(name):
            os.environ[name] = str(number)


def cluster(role: Optional[str] = None, servers_needed: bool = True) -> Cluster:
    """This process's place in its cluster.

    Parameters
    ----------
    role : str, optional
        By default DMLC_ROLE.
    servers_needed : bool
        False: DMLC_NUM_SERVER may be 0, as where PyTorch's workers are the whole job.

    Raises
    ------
    ConfigurationError
        A variable is missing, wrong, or contradicts another.
    """
    role = role or get("DMLC_ROLE")
    get("DMLC_PS_VAN_TYPE")  # refused by name, before a node waits for others
    if servers_needed and not get("DMLC_NUM_SERVER"):
        raise ConfigurationError(f"DMLC_NUM_SERVER must be {KINDS['positive'][0]}, got 0")
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


def machine() -> Cluster:
    """This process's place in a job of one machine's workers, as `cluster` has it."""
    return Cluster(
        role="worker",
        root_uri=get("DMLC_PS_ROOT_URI") if is_set("DMLC_PS_ROOT_URI") else "",
        root_port=get("DMLC_PS_ROOT_PORT") if is_set("DMLC_PS_ROOT_PORT") else 0,
        num_worker=1,
        num_server=1,
        worker_id=0,
        local_rank=get("BYTEPS_LOCAL_RANK"),
        local_size=get("BYTEPS_LOCAL_SIZE"),
    )


def heartbeat_timeout() -> int:
    """Seconds without a heartbeat after which a node is dead; 0: never, since none are sent."""
    return get("PS_HEARTBEAT_TIMEOUT") if get("PS_HEARTBEAT_INTERVAL") else 0


def is_silent(intervals: int) -> bool:
    """Whether a node is dead that has given no sign of life for so many PS_HEARTBEAT_INTERVAL.

    They are those of who listens: while it is suspended, it counts none, and accuses nobody.
    """
    interval = get("PS_HEARTBEAT_INTERVAL")
    return interval > 0 and intervals * interval > max(heartbeat_timeout(), interval)


def traced_steps() -> range:
    """The steps that BYTEPS_TRACE_ON records, counted from 1.

    Raises
    ------
    ConfigurationError
        The last comes before the first.
    """
    first, last = get("BYTEPS_TRACE_START_STEP"), get("BYTEPS_TRACE_END_STEP")
    if last < first:
        raise ConfigurationError(
            f"BYTEPS_TRACE_END_STEP must be >= BYTEPS_TRACE_START_STEP ({first}), got {last}"
        )
    return range(first, last + 1)


def server_threads() -> int:
    """Threads that a server splits an update over: OMP_NUM_THREADS, or the number of cores."""
    return get("OMP_NUM_THREADS") or cores()


def alike() -> dict[str, Any]:
    """What the variables say that all nodes of a cluster must have alike."""
    return {variable.name: get(variable.name) for variable in TABLE if variable.alike}


def export_for_ps_lite(cluster: Cluster) -> None:
    """Set what ps-lite reads, with workers counted its way; call just before mx.kv.create.

    Afterwards DMLC_NUM_WORKER counts processes. A server or scheduler must keep its role there.
    """
    os.environ.update(_for_ps_lite(cluster))


@contextmanager
def exported_for_ps_lite(cluster: Cluster) -> Iterator[None]:
    """`export_for_ps_lite` for as long as ps-lite starts: then the environment is as before."""
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
        "MXNET_KVSTORE_BIGARRAY_BOUND": str(bigarray_bound()),
    }


def bigarray_bound() -> int:
    """Elements up to which MXNet leaves an array on one server: the most that it can be told.

    Servers tell our arrays by their keys, and parts of an array have keys of other arrays.
    """
    return _BY_NAME["MXNET_KVSTORE_BIGARRAY_BOUND"].default


def resize(num_worker: int, num_server: int, worker_id: Optional[int] = None) -> None:
    """Describe a cluster of another size, with the same address, for `cluster` to read."""
    os.environ.update(DMLC_NUM_WORKER=str(num_worker), DMLC_NUM_SERVER=str(num_server))
    if worker_id is not None:
        os.environ["DMLC_WORKER_ID"] = str(worker_id)


def prepare_engine() -> None:
    """Set, where the user did not, what MXNet and ps-lite read once: call before either starts."""
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
    """Set, where the user did not, how many exchanges MXNet's engine lets be under way.

    MXNet reads it at the first operator. It decides what MXNet draws after a seed, too, so that
    `import gluon_gc` must not change it.
    """
    if not is_set("MXNET_CPU_PARALLEL_RAND_COPY"):
        copies = _copies("MXNET_CPU_PARALLEL_RAND_COPY")
        os.environ["MXNET_CPU_PARALLEL_RAND_COPY"] = str(copies)


def _copies(name: str) -> int:
    return max(get(name), get("BYTEPS_THREADPOOL_SIZE"))


def prepare_horovod() -> None:
    """Set, where the user did not, when Horovod warns of a stall and gives up: before it starts."""
    warn_after, give_up_after = get("GLUON_GC_STALL_SECONDS"), get("GLUON_GC_TIMEOUT")
    first = min(filter(None, (warn_after, give_up_after)), default=0)
    values = {"STALL_CHECK_TIME_SECONDS": first, "STALL_SHUTDOWN_TIME_SECONDS": give_up_after}
    for name, value in (values if first else {"STALL_CHECK_DISABLE": 1}).items():
        os.environ.setdefault(f"HOROVOD_{name}", str(value))


def several_on_some_nodes() -> bool:
    """Whether some of Horovod's workers may share a node, and others be elsewhere; alike on all."""
    size = os.environ.get("HOROVOD_SIZE")
    alone_or_together = (os.environ.get(f"HOROVOD_{of}_SIZE") for of in ("CROSS", "LOCAL"))
    return is_set("BYTEPS_LOCAL_SIZE") or size is None or size not in alone_or_together


def for_child(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """This process's environment with changes, for a process to start; None removes a variable."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def for_service(changes: Mapping[str, Optional[str]]) -> dict[str, str]:
    """As `for_child`, without the empty entries of PYTHONPATH: they mean the current directory."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return for_child({**changes, "PYTHONPATH": os.pathsep.join(filter(None, entries)) or None})

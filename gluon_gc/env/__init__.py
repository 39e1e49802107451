"""Reads environment variables. No other package of gluon_gc reads them.

`variables` has the tables of all variables. An empty variable counts as not set. This package does
not import MXNet, because bpslaunch must start fast, and must read DMLC_ROLE before MXNet does.
"""

from __future__ import annotations

import difflib
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping

from .variables import BIGARRAY_BOUND as BIGARRAY_BOUND
from .variables import IGNORED, KINDS, OF_LAUNCHERS, REQUIRED, TABLE, Variable
from .variables import cores as cores


class ConfigurationError(ValueError):
    """A variable is missing, breaks its rule, or contradicts another one."""


_VARIABLES = {variable.name: variable for variable in (*TABLE, *OF_LAUNCHERS)}


def _text(variable: Variable) -> tuple[str, str]:
    """The current or older name under which a variable is set, and its text, or "" if not set."""
    for name in (variable.name, variable.older):
        text = os.environ.get(name, "").strip() if name else ""
        if text:
            return name, text
    return variable.name, ""


def get(name: str) -> Any:
    """The value of a variable that is in a table, or its default if it is not set.

    Raises ConfigurationError if the value is not allowed, or if the variable is required and not
    set.
    """
    variable = _VARIABLES[name]
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
    """Whether a variable of a table is set, by its current or its older name."""
    return bool(_text(_VARIABLES[name])[1])


def shared_settings() -> dict[str, Any]:
    """The values that must be the same on all nodes of a cluster, by name of the variable."""
    return {variable.name: get(variable.name) for variable in TABLE if variable.must_match}


def traced_steps() -> range:
    """The steps that BYTEPS_TRACE_ON records, counted from 1."""
    first, last = get("BYTEPS_TRACE_START_STEP"), get("BYTEPS_TRACE_END_STEP")
    if last < first:
        raise ConfigurationError(
            f"BYTEPS_TRACE_END_STEP must be >= BYTEPS_TRACE_START_STEP ({first}), got {last}"
        )
    return range(first, last + 1)


def server_threads() -> int:
    """The number of threads of a server's update: OMP_NUM_THREADS, or the number of cores."""
    return get("OMP_NUM_THREADS") or cores()


def misspelt() -> dict[str, str | None]:
    """Variables that are set but not read, each with the most similar variable that is read.

    A variable that begins with BYTEPS_ and is similar to none is left out: it may belong to BytePS.
    """
    stems = {_stem(variable.name): variable.name for variable in TABLE}
    known = {*_VARIABLES, *(variable.older for variable in TABLE), *IGNORED}
    nearest: dict[str, str | None] = {}
    for name in sorted(name for name in os.environ if name not in known):
        if name.startswith(("BYTEPS_", "GLUON_GC_")):
            near = [stems[stem] for stem in difflib.get_close_matches(_stem(name), stems, n=1)]
            if near or name.startswith("GLUON_GC_"):
                nearest[name] = near[0] if near else None
    return nearest


def set_by_user() -> Iterator[tuple[Variable, str, str]]:
    """Yield each variable of a table that was set when the process began, its name and its text.

    gluon_gc itself sets some of them later.
    """
    first = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    texts = dict(line.split("=", 1) for line in first if "=" in line)
    for variable in (*TABLE, *OF_LAUNCHERS):
        for name in (variable.name, variable.older):
            if name and texts.get(name, "").strip():
                yield variable, name, texts[name]


def ignored() -> list[str]:
    """The variables of BytePS that are set but have no effect."""
    return [name for name in IGNORED if os.environ.get(name)]


def _stem(name: str) -> str:
    """A name without its prefix. With prefixes, all names would be similar."""
    return re.sub("^(BYTEPS|DMLC|GLUON_GC|PS)_", "", name)


# The role and ranks of this process in its cluster, and the launcher that started it


@dataclass(frozen=True)
class Cluster:
    """The size of a cluster, and the role and ranks of this process in it."""

    role: str
    root_uri: str  # of the scheduler
    root_port: int
    num_worker: int  # worker machines
    num_server: int  # server processes
    worker_id: int | None  # the number of this worker's machine; None for the other roles
    local_rank: int = 0
    local_size: int = 1  # workers on each machine

    def __post_init__(self) -> None:
        def below(name: str, value: int, limit_name: str, limit: int) -> None:
            if value >= limit:
                raise ConfigurationError(f"{name} must be < {limit_name} ({limit}), got {value}")

        if self.worker_id is not None:
            below("DMLC_WORKER_ID", self.worker_id, "DMLC_NUM_WORKER", self.num_worker)
        below("BYTEPS_LOCAL_RANK", self.local_rank, "BYTEPS_LOCAL_SIZE", self.local_size)

    @property
    def total_workers(self) -> int:
        """The number of worker processes. ps-lite counts processes, BytePS counts machines."""
        return self.num_worker * self.local_size

    @property
    def rank(self) -> int | None:
        """The rank of this worker among all workers. None for the other roles."""
        if self.worker_id is None:
            return None
        return self.worker_id * self.local_size + self.local_rank


def cluster(role: str | None = None, servers_needed: bool = True) -> Cluster:
    """The cluster of this process. PyTorch's jobs need no servers.

    `role` is DMLC_ROLE by default.
    """
    role = role or get("DMLC_ROLE")
    get("DMLC_PS_VAN_TYPE")  # a wrong value is an error now, not after the node has waited
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
    """The cluster of a job on one machine, which needs no scheduler."""
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


def one_machine() -> bool:
    """Whether the job runs on one machine. As in BytePS, it then needs no scheduler or servers."""
    return get("DMLC_NUM_WORKER") == 1 and not get("BYTEPS_FORCE_DISTRIBUTED")


def is_worker() -> bool:
    """Whether DMLC_ROLE makes this process a worker."""
    return is_set("DMLC_ROLE") and get("DMLC_ROLE") == "worker"


def require_worker() -> None:
    """Raise ConfigurationError if DMLC_ROLE makes this process a server or the scheduler."""
    if is_set("DMLC_ROLE") and not is_worker():
        raise ConfigurationError(
            f"DMLC_ROLE must be worker for a training script, got {get('DMLC_ROLE')!r}"
        )


def distributed() -> bool:
    """Whether this process is a worker of a parameter-server cluster."""
    return is_worker() and not one_machine()


def shares_machine() -> bool:
    """Whether this process is one of several workers of a job on one machine."""
    return is_worker() and one_machine() and get("BYTEPS_LOCAL_SIZE") > 1


def under_horovod() -> bool:
    """Whether horovodrun has started this process, or mpirun has started several processes."""
    sizes = (get(name) or 1 for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    return is_set("HOROVOD_RANK") or max(sizes) > 1


def several_on_some_nodes() -> bool:
    """Whether some Horovod workers may share a node while others do not. Equal on all workers."""
    size = os.environ.get("HOROVOD_SIZE")
    alone_or_together = (os.environ.get(f"HOROVOD_{scope}_SIZE") for scope in ("CROSS", "LOCAL"))
    return is_set("BYTEPS_LOCAL_SIZE") or size is None or size not in alone_or_together


def has_aws_key() -> bool:
    """Whether AWS_ACCESS_KEY_ID is set, so that obstore itself has the credentials of S3."""
    return bool(os.environ.get("AWS_ACCESS_KEY_ID"))


def require_url_of_s3() -> None:
    """Raise ConfigurationError if the address of a server that is like S3 is no URL."""
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        address = os.environ.get(name, "")
        if address and not address.startswith(("http://", "https://")):
            raise ConfigurationError(f"{name} must begin with http:// or https://, got {address!r}")


def heartbeat_timeout() -> int:
    """Seconds without a heartbeat after which a node counts as dead. 0 if there are none."""
    return get("PS_HEARTBEAT_TIMEOUT") if get("PS_HEARTBEAT_INTERVAL") else 0


def is_silent(intervals: int) -> bool:
    """Whether a node counts as dead after this many intervals without a heartbeat.

    The listening process counts intervals, not time. If it is suspended itself, it counts none, so
    it does not report others as dead.
    """
    interval = get("PS_HEARTBEAT_INTERVAL")
    return interval > 0 and intervals * interval > max(heartbeat_timeout(), interval)


# Variables for MXNet, ps-lite, Horovod, Gloo and child processes


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


def interfaces() -> dict[str, str]:
    """The network interfaces that the user names, by the variable."""
    of_gloo = os.environ.get("GLOO_SOCKET_IFNAME")
    named = {"GLOO_SOCKET_IFNAME": of_gloo, "DMLC_INTERFACE": get("DMLC_INTERFACE")}
    return {variable: name for variable, name in named.items() if name}


def prepare_gloo() -> None:
    """Set the network interface of Gloo, unless the user has set it.

    Call it before a process group is created.
    """
    interface = get("DMLC_INTERFACE")
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def export_local(rank: int | None, size: int | None) -> None:
    """Set LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun does, if they are known and not set."""
    for name, number in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        if number is not None and not is_set(name):
            os.environ[name] = str(number)


def resize(num_worker: int, num_server: int, worker_id: int | None = None) -> None:
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


def for_child(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of a child process: this one with changes. None removes a variable."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def for_service(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Like `for_child`, without empty entries of PYTHONPATH: they mean the current directory."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return for_child({**changes, "PYTHONPATH": os.pathsep.join(filter(None, entries)) or None})

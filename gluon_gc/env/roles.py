"""The role and ranks of this process in its cluster, and the launcher that started it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from .reading import ConfigurationError, get, is_set
from .variables import KINDS


@dataclass(frozen=True)
class Cluster:
    """The size of a cluster, and the role and ranks of this process in it."""

    role: str
    root_uri: str  # of the scheduler
    root_port: int
    num_worker: int  # worker machines
    num_server: int  # server processes
    worker_id: Optional[int]  # the number of this worker's machine; None for the other roles
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
    def rank(self) -> Optional[int]:
        """The rank of this worker among all workers. None for the other roles."""
        if self.worker_id is None:
            return None
        return self.worker_id * self.local_size + self.local_rank


def cluster(role: Optional[str] = None, servers_needed: bool = True) -> Cluster:
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


def of_torchrun(name: str) -> Optional[int]:
    """The value of one of torchrun's variables, such as LOCAL_RANK. None if it is not set."""
    return get(name)


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

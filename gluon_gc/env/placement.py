"""This process's place in its cluster, and who started it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from ..variables import KINDS
from .reading import ConfigurationError, get, is_set


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
        """The number of worker processes: ps-lite counts these as workers, BytePS machines."""
        return self.num_worker * self.local_size

    @property
    def rank(self) -> Optional[int]:
        """The rank of this worker among all of them; None for the other roles."""
        if self.worker_id is None:
            return None
        return self.worker_id * self.local_size + self.local_rank


def cluster(role: Optional[str] = None, servers_needed: bool = True) -> Cluster:
    """This process's place in its cluster.

    Parameters
    ----------
    role : str, optional
        By default DMLC_ROLE.
    servers_needed : bool
        Whether DMLC_NUM_SERVER must be > 0. PyTorch's jobs have no servers.

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
    """This process's place in a job on one machine."""
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
    """Whether the job has one machine, which needs no scheduler and no servers, as in BytePS."""
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
    """Whether horovodrun has started this process, or mpirun several of them."""
    sizes = (get(name) or 1 for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    return is_set("HOROVOD_RANK") or max(sizes) > 1


def several_on_some_nodes() -> bool:
    """Whether some of Horovod's workers may share a node while others do not; the same on all."""
    size = os.environ.get("HOROVOD_SIZE")
    alone_or_together = (os.environ.get(f"HOROVOD_{scope}_SIZE") for scope in ("CROSS", "LOCAL"))
    return is_set("BYTEPS_LOCAL_SIZE") or size is None or size not in alone_or_together


def of_torchrun(name: str) -> Optional[int]:
    """The number in one of torchrun's variables, such as LOCAL_RANK; None if it is not set."""
    return get(name)


def heartbeat_timeout() -> int:
    """Seconds without a heartbeat after which a node counts as dead; 0 if none are sent."""
    return get("PS_HEARTBEAT_TIMEOUT") if get("PS_HEARTBEAT_INTERVAL") else 0


def is_silent(intervals: int) -> bool:
    """Whether a node counts as dead after this many intervals without a heartbeat.

    The listener counts the intervals. While it is suspended it counts none, so it accuses nobody.
    """
    interval = get("PS_HEARTBEAT_INTERVAL")
    return interval > 0 and intervals * interval > max(heartbeat_timeout(), interval)

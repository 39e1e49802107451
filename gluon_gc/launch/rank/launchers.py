"""Finds this worker's rank and the number of workers in the variables of its launcher.

A launcher is bpslaunch, torchrun, horovodrun, mpirun or SLURM's srun. If the variables of a job
with several workers are incomplete, the script gets an error, so that it never trains alone by
mistake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ... import env
from ...env import ConfigurationError
from ...log import logger
from . import slurm

_BPSLAUNCH, _SRUN = "bpslaunch", "srun"


@dataclass(frozen=True)
class WorkerRank:
    launcher: str  # the program that has started the worker
    rank: int
    size: int
    local_rank: int | None = None  # None if the launcher does not set it
    local_size: int | None = None

    def __str__(self) -> str:
        return f"{self.launcher} has started worker {self.rank} of {self.size}"


@dataclass(frozen=True)
class _Variables:
    """The names of the variables in which a launcher sets a `WorkerRank`."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str | None = None

    def read(self) -> WorkerRank | None:
        """The rank, if both the rank and the size are set."""
        rank, size = env.get(self.rank), env.get(self.size)
        if rank is None or size is None:
            return None
        if rank >= size:
            raise ConfigurationError(f"{self.rank} must be < {self.size} ({size}), got {rank}")
        local_size = env.get(self.local_size) if self.local_size else None
        return WorkerRank(self.launcher, rank, size, env.get(self.local_rank), local_size)

    def complete(self, others: list[WorkerRank]) -> WorkerRank | None:
        """The rank. If only its rank or its size is set, a matching one of `others` is used."""
        rank, size = env.get(self.rank), env.get(self.size)
        if (rank is None) == (size is None) or (rank is None and size == 1):
            return self.read()
        for other in others:
            if other.rank == rank or other.size == size:
                return other
        present, missing = (self.size, self.rank) if rank is None else (self.rank, self.size)
        raise ConfigurationError(
            f"{present} is {env.get(present)}, but {missing} is not set: a launcher sets both for "
            "each worker"
        )


_TORCHRUN = _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_OTHERS = (
    _Variables("horovodrun", *(f"HOROVOD_{name}" for name in _NAMES)),
    _Variables("mpirun", *(f"OMPI_COMM_WORLD_{name}" for name in _NAMES)),
    _Variables("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def find() -> WorkerRank | None:
    """The rank that a launcher other than bpslaunch has set; None without such a launcher.

    Launchers can be nested: torchrun in any of the others, and mpirun in srun. The innermost one
    counts.
    """
    found = _TORCHRUN.read()
    if found is not None and found.local_rank is not None:
        return found
    srun = _of_srun()
    others = [each for each in (row.complete(srun) for row in _OTHERS) if each] + srun
    found = _TORCHRUN.complete(others) or next(iter(others), None)
    if found is None or found.local_rank is not None:
        return found
    for other in others:
        same = (other.rank, other.size) == (found.rank, found.size)
        if same and other.local_rank is not None:
            return replace(found, local_rank=other.local_rank, local_size=other.local_size)
    return found


def _of_srun() -> list[WorkerRank]:
    if not slurm.is_step():
        return []
    row = _Variables(_SRUN, "SLURM_PROCID", slurm.tasks_variable(), "SLURM_LOCALID")
    found = row.complete([])
    return [] if found is None else [replace(found, local_size=slurm.tasks_here())]


def of_bpslaunch() -> WorkerRank | None:
    """The rank in the variables of bpslaunch, such as DMLC_ROLE; None if this is not a worker.

    It is also None if bpslaunch has started torchrun: torchrun's variables count then.
    """
    if not env.is_worker() or env.is_set("TORCHELASTIC_RUN_ID"):
        return None
    cluster = env.machine() if env.one_machine() else env.cluster(servers_needed=False)
    local_rank, local_size = cluster.local_rank, cluster.local_size
    if env.is_set("LOCAL_RANK") and env.is_set("LOCAL_WORLD_SIZE"):  # bpslaunch --local's
        local_rank, local_size = env.get("LOCAL_RANK"), env.get("LOCAL_WORLD_SIZE")
    return WorkerRank(_BPSLAUNCH, cluster.rank, cluster.total_workers, local_rank, local_size)


def address(found: WorkerRank) -> tuple[str, int]:
    """The address and the port at which worker 0 listens. ConfigurationError: they are not known.

    They are MASTER_ADDR and MASTER_PORT. If these are not set, bpslaunch's workers use the
    scheduler's address, because their job has no scheduler. Other workers of one machine use
    127.0.0.1. In a job of SLURM, the address is the first machine, and the port follows from the
    numbers of the job and the step.
    """
    host, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if found.launcher == _BPSLAUNCH:
        host, port = host or _given("DMLC_PS_ROOT_URI"), port or _given("DMLC_PS_ROOT_PORT")
    elif found.local_size == found.size:
        host, port = host or "127.0.0.1", port or slurm.port(found.launcher == _SRUN)
    else:
        host = host or slurm.first_host(found.launcher == _SRUN)
        port = port or slurm.port(found.launcher == _SRUN)
    if host is None or port is None:
        raise ConfigurationError(
            f"{found}, but the address of worker 0 is not known: set MASTER_ADDR and MASTER_PORT "
            "to the address of its machine and a free port there, the same for all workers, or "
            "start the workers with torchrun"
        )
    return host, port


def _given(name: str) -> Any:
    """The value of a required variable; None if it is not set."""
    return env.get(name) if env.is_set(name) else None


def require_alone() -> None:
    """Refuse to train alone if variables of a cluster are set. Only warn in a job of SLURM."""
    env.require_worker()
    if env.is_set("DMLC_ROLE"):
        return
    workers = _given("DMLC_NUM_WORKER") or 1
    if workers > 1:
        raise ConfigurationError(
            f"DMLC_NUM_WORKER is {workers}, but DMLC_ROLE is not set: start each worker with "
            "DMLC_ROLE=worker bpslaunch"
        )
    tasks = env.get("SLURM_NTASKS") or 1
    if tasks > 1:
        logger.warning(
            "SLURM has %d tasks for this job, but this process trains alone: start the workers "
            "with srun",
            tasks,
        )

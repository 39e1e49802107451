"""Describes the processes that bpslaunch starts: this machine's workers, or a whole cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, Optional, Sequence

from ... import env
from ..scheduler.listening import listen
from .command import runnable
from .supervisor import Task

_Changes = Dict[str, Optional[str]]  # changes to the environment; None removes a variable
_NODES = Path("/sys/devices/system/node")


def service(role: str) -> list[str]:
    """The command of a server or the scheduler. It leaves the current folder out of sys.path."""
    path = Path(__file__).resolve().with_name("service.py")
    return [sys.executable, str(path), role]


def _bound_to_numa_node(command: list[str], local_rank: int, local_size: int) -> list[str]:
    """The command, bound to one NUMA node if BYTEPS_NUMA_ON is set and numactl is installed."""
    if not env.get("BYTEPS_NUMA_ON") or shutil.which("numactl") is None:
        return command
    nodes = sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
    if len(nodes) < 2:
        return command
    node = nodes[local_rank * len(nodes) // local_size]
    return ["numactl", f"--cpunodebind={node}", "--localalloc", *command]


def _free_ports(count: int) -> list[str]:
    """Different free ports of this machine."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


def _ranks(rank: int, size: int, local_rank: int, local_size: int) -> _Changes:
    """The ranks of a worker, in torchrun's variables."""
    values = {"RANK": rank, "WORLD_SIZE": size}
    values.update(LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=local_size)
    return {"TORCHELASTIC_RUN_ID": None, **{name: str(value) for name, value in values.items()}}


def _addresses_here(processes: int) -> _Changes:
    """The addresses at which the processes of a job on this machine rendezvous."""
    port, master_port = _free_ports(2)
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master_port}
    if processes > 1:
        here.update(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=port)
    return here


def local_tasks(command: Sequence[str], workers: int, servers: int) -> list[Task]:
    """The processes of a cluster on this machine.

    With servers, each worker counts as a machine. Without servers, all are workers of one machine.
    """
    program = runnable(command)
    job: _Changes = {
        "DMLC_NUM_SERVER": str(servers),
        "GLUON_GC_SECRET": env.get("GLUON_GC_SECRET") or secrets.token_hex(16),
        "OMP_NUM_THREADS": str(env.get("OMP_NUM_THREADS") or max(1, env.cores() // workers)),
        **_addresses_here(workers + servers),
    }
    if not servers:
        job.update(DMLC_ROLE="worker", DMLC_NUM_WORKER="1", DMLC_WORKER_ID="0")
        job.update(BYTEPS_FORCE_DISTRIBUTED=None)
        return _workers(program, job, workers, workers, 0)
    job.update(DMLC_ROLE=None, DMLC_NUM_WORKER=str(workers), DMLC_WORKER_ID=None)
    job.update(DMLC_NODE_HOST="127.0.0.1", DMLC_PS_VAN_TYPE=env.get("DMLC_PS_VAN_TYPE"))
    job.update(BYTEPS_LOCAL_RANK="0", BYTEPS_LOCAL_SIZE="1", BYTEPS_FORCE_DISTRIBUTED="1")
    environ = env.for_service(job)
    tasks = [Task("scheduler", service("scheduler"), environ, service=True)]
    for index in range(servers):
        tasks.append(Task(f"server {index}", service("server"), environ, service=True))
    for rank in range(workers):
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}
        own.update(_ranks(rank, workers, rank, workers))
        if env.get("BYTEPS_TRACE_ON"):  # all workers have local rank 0, and need separate folders
            own["BYTEPS_TRACE_DIR"] = os.path.join(env.get("BYTEPS_TRACE_DIR"), f"worker{rank}")
        tasks.append(Task(f"worker {rank}", program, env.for_child({**job, **own})))
    return tasks


def _workers(
    program: list[str], job: _Changes, local_size: int, size: int, first: int
) -> list[Task]:
    """This machine's workers of a job. The first one has rank `first`."""
    tasks = []
    for local_rank in range(local_size):
        rank = first + local_rank
        own = {"BYTEPS_LOCAL_RANK": str(local_rank), "BYTEPS_LOCAL_SIZE": str(local_size)}
        own.update(_ranks(rank, size, local_rank, local_size))
        bound = _bound_to_numa_node(program, local_rank, local_size)
        tasks.append(Task(f"worker {rank}", bound, env.for_child({**job, **own})))
    return tasks


def worker_tasks(command: Sequence[str]) -> list[Task]:
    """This machine's workers: one for each visible device, or else BYTEPS_LOCAL_SIZE workers.

    Every worker sees all devices. A script chooses its own with ``mx.gpu(bps.local_rank())``.
    """
    program = runnable(command)
    devices = env.get("NVIDIA_VISIBLE_DEVICES") or "none"
    is_list = devices not in ("all", "none", "void")
    size = len(devices.split(",")) if is_list else env.get("BYTEPS_LOCAL_SIZE")
    if env.one_machine():
        return _workers(program, _addresses_here(size), size, size, 0)
    cluster = env.cluster(servers_needed=False)
    first, job = cluster.worker_id * size, {}
    if not cluster.num_server:  # no scheduler runs, so worker 0 listens at its address
        job = {"MASTER_ADDR": cluster.root_uri, "MASTER_PORT": str(cluster.root_port)}
        if first == 0:  # report a bad address now
            listen(cluster.root_uri, cluster.root_port, "worker 0's").close()
    return _workers(program, job, size, cluster.num_worker * size, first)

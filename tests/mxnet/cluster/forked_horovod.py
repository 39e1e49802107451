"""Starts Horovod workers by forking a process that has imported MXNet, without horovodrun.

horovodrun starts a new Python for each worker, and four workers take 11 processor seconds to start.
The forked workers get horovodrun's variables, and meet at Horovod's own rendezvous server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, Optional

from tests.mxnet.cluster.cluster import JOBS, Cluster


class HorovodWorkers(Cluster):
    """Horovod workers; their rendezvous server runs in this process.

    Parameters
    ----------
    folder : Path
        The folder of logs and results.
    workers : int
    hosts : str
        The hosts and their numbers of workers, as in horovodrun's option -H.
    variables
        The environment variables of all workers.
    """

    def __init__(self, folder: Path, workers: int, hosts: str, **variables: Any) -> None:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.gloo_run import create_slot_env_vars
        from horovod.runner.http.http_server import RendezvousServer

        super().__init__(folder, workers, 0, **variables)
        self.leave_out_dmlc()
        slots = get_host_assignments(parse_hosts(hosts), workers)
        self._rendezvous = RendezvousServer()
        self.environment.update(
            HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(self._rendezvous.start()),
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_IFACE="lo",
            HOROVOD_CYCLE_TIME="5",  # milliseconds; with 1, idle workers keep a core busy
        )
        self._rendezvous.init(slots)
        self._slots = [create_slot_env_vars(slot) for slot in slots]

    def start_worker(self, rank: int, job: str, arguments: Any = None, **variables: Any) -> None:
        result = str(self.result_file(rank))
        command = [sys.executable, str(JOBS), job, result, json.dumps(arguments)]
        self.start(f"worker{rank}", command, **self._slots[rank], **variables)

    def stop(self) -> None:
        super().stop()
        self._rendezvous.stop()


def start_forked_horovod(
    folder: Path,
    job: str,
    arguments: Any = None,
    workers: int = 2,
    variables: Optional[Dict[str, Any]] = None,
    hosts: Optional[str] = None,
) -> Cluster:
    """Start a function of jobs.py on Horovod workers, by default all on this host."""
    cluster = HorovodWorkers(folder, workers, hosts or f"localhost:{workers}", **(variables or {}))
    for rank in range(workers):
        cluster.start_worker(rank, job, arguments)
    return cluster

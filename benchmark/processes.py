"""The processes of a benchmark: started on the hosts of a network, ended with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Callable, List, Sequence

from network import Network

HERE = Path(__file__).resolve().parent
PORT = 9000
MXNET_ROLE = ("-c", "import mxnet")
"""What servers and the scheduler of MXNet's own parameter server run."""
ROLE = ("-m", "bpslaunch")
"""What those of gluon_gc run."""


class Processes:
    """The processes of one run; a context manager that ends them all.

    Parameters
    ----------
    network : Network
        Whose hosts they run on.
    timeout : int
        Seconds after which a TimeoutError ends the run.
    """

    def __init__(self, network: Network, timeout: int) -> None:
        self._network = network
        self._timeout = timeout
        self._started: List[subprocess.Popen] = []

    def __enter__(self) -> "Processes":
        self._alarm = signal.signal(signal.SIGALRM, self._too_long)
        signal.alarm(self._timeout)
        return self

    def _too_long(self, *_: object) -> None:
        raise TimeoutError(f"it took more than {self._timeout} s")

    def start(self, host: int, words: Sequence[str], **variables: object) -> subprocess.Popen:
        """Start a Python program on a host."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "HOROVOD_"))}
        threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
        process = subprocess.Popen(
            self._network.command(host, [sys.executable, *words]),
            env={**kept, **threads, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def start_workers(
        self,
        backend: str,
        workers: int,
        servers: int,
        words: Callable[[int], Sequence[str]],
        role: Sequence[str] = ROLE,
    ) -> List[subprocess.Popen]:
        """Start a whole cluster, workers on the first hosts and servers on the next ones.

        Parameters
        ----------
        backend : str
            "server", "horovod", or "none": workers that know nothing of each other.
        workers, servers : int
            How many.
        words : callable
            The program of the worker whose rank it is called with.
        role : sequence of str
            That of servers and the scheduler, which runs on the hub.

        Returns
        -------
        list of Popen
            The workers.
        """
        if backend == "none":
            return [self.start(rank, words(rank)) for rank in range(workers)]
        if backend == "horovod":
            return self._start_horovod(workers, words)
        cluster = {
            "DMLC_PS_ROOT_URI": self._network.hub,
            "DMLC_PS_ROOT_PORT": PORT,
            "DMLC_NUM_WORKER": workers,
            "DMLC_NUM_SERVER": servers,
        }
        for host, name in [(-1, "scheduler"), *((workers + i, "server") for i in range(servers))]:
            self.start(host, role, **cluster, DMLC_ROLE=name)
        return [
            self.start(rank, words(rank), **cluster, DMLC_ROLE="worker", DMLC_WORKER_ID=rank)
            for rank in range(workers)
        ]

    def _start_horovod(
        self, workers: int, words: Callable[[int], Sequence[str]]
    ) -> List[subprocess.Popen]:
        addresses = self._network.addresses[:workers]
        hosts = ",".join(f"{address}:1" for address in addresses)
        rendezvous = self.start(-1, [str(HERE / "rendezvous.py"), hosts])
        common = {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": self._network.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._network.hub,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": int(rendezvous.stdout.readline()),
            "HOROVOD_SIZE": workers,
            "HOROVOD_LOCAL_RANK": 0,
            "HOROVOD_LOCAL_SIZE": 1,
            "HOROVOD_CROSS_SIZE": workers,
        }
        return [
            self.start(
                rank,
                words(rank),
                **common,
                HOROVOD_HOSTNAME=address,
                HOROVOD_RANK=rank,
                HOROVOD_CROSS_RANK=rank,
            )
            for rank, address in enumerate(addresses)
        ]

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._alarm)
        for process in self._started:
            with suppress(ProcessLookupError):  # what a process started may have outlived it
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()


def read_line(process: subprocess.Popen, begin: str) -> str:
    """What follows `begin` on the line that a process prints next with it.

    Raises
    ------
    RuntimeError
        It ended before.
    """
    for line in process.stdout:
        if line.startswith(begin):
            return line[len(begin) :]
    raise RuntimeError(f"a worker ended before it said {begin!r}")

"""Starts the processes of a benchmark on the hosts of a network, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Callable, Sequence

from network import Network

HERE = Path(__file__).resolve().parent
PORT = 9000
MXNET_ROLE = ("-c", "import mxnet")
"""The arguments that start a server or scheduler of MXNet's own parameter server."""
ROLE = ("-m", "bpslaunch")
"""The arguments that start a server or scheduler of gluon_gc."""


class Processes:
    """A context manager for the processes of one run; leaving it ends them all.

    Parameters
    ----------
    network : Network
        The processes run on its hosts.
    timeout : int
        Seconds after which a TimeoutError ends the run.
    python : str
        The Python that runs them.
    tree : Path, optional
        The checkout whose gluon_gc they import. Default: the one of this script.
    port : int
        The port of the cluster's rendezvous. Clusters on one network need different ones.
    """

    def __init__(
        self,
        network: Network,
        timeout: int,
        python: str = sys.executable,
        tree: Path | None = None,
        port: int = PORT,
    ) -> None:
        self._network, self._tree, self._port = network, tree, port
        self._timeout = timeout
        self._python = python
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> "Processes":
        self._alarm = signal.signal(signal.SIGALRM, self._too_long)
        signal.alarm(self._timeout)
        return self

    def _too_long(self, *_: object) -> None:
        raise TimeoutError(f"it took more than {self._timeout} s")

    def start(
        self, host: int, words: Sequence[str], log: Path | None = None, **variables: object
    ) -> subprocess.Popen:
        """Start a Python program on a host; its output is appended to `log`, or goes to a pipe."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "HOROVOD_"))}
        threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(self._tree or HERE.parent)}
        with open(log or os.devnull, "a") as file:
            process = subprocess.Popen(
                self._network.command(host, [self._python, *words]),
                cwd=self._tree,  # python -m looks there before it reads PYTHONPATH
                env={**kept, **threads, **{name: str(value) for name, value in variables.items()}},
                stdin=subprocess.PIPE,
                stdout=file if log else subprocess.PIPE,
                stderr=file if log else None,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _start_worker(
        self, rank: int, host: int, words: Sequence[str], **variables: object
    ) -> subprocess.Popen:
        """Start a worker. If BYTEPS_TRACE_DIR is set, the worker gets its own folder there."""
        traces = os.environ.get("BYTEPS_TRACE_DIR")
        own = {"BYTEPS_TRACE_DIR": f"{traces}/worker{rank}"} if traces else {}
        return self.start(host, words, **variables, **own)

    def start_workers(
        self,
        backend: str,
        workers: int,
        servers: int,
        words: Callable[[int], Sequence[str]],
        role: Sequence[str] = ROLE,
        per_machine: int = 1,
        beside: bool = False,
    ) -> list[subprocess.Popen]:
        """Start a whole cluster, with workers on the first hosts and servers on the next ones.

        Parameters
        ----------
        backend : str
            "server", "horovod", "torch", or "none" for workers that do not communicate.
        workers, servers : int
            The numbers of workers and servers.
        words : callable
            words(rank) returns the Python arguments of that worker.
        role : sequence of str
            The Python arguments of servers and of the scheduler, which runs on the hub.
        per_machine : int
            The number of workers on one host.
        beside : bool
            Whether servers run on the workers' hosts.

        Returns
        -------
        list of Popen
            The workers.
        """
        if backend == "none":
            return [self._start_worker(rank, rank, words(rank)) for rank in range(workers)]
        if backend == "horovod":
            return self._start_horovod(workers, words, per_machine)
        if backend == "torch":
            return self._start_torch(workers, words, per_machine)
        machines = workers // per_machine
        cluster = {
            "DMLC_PS_ROOT_URI": self._network.hub,
            "DMLC_PS_ROOT_PORT": self._port,
            "DMLC_NUM_WORKER": workers if role is MXNET_ROLE else machines,
            "DMLC_NUM_SERVER": servers,
        }
        if per_machine > 1 and role is ROLE:
            cluster["BYTEPS_LOCAL_SIZE"] = per_machine
        hosts = [i % machines if beside else machines + i for i in range(servers)]
        for host, name in [(-1, "scheduler"), *((host, "server") for host in hosts)]:
            self.start(host, role, **cluster, DMLC_ROLE=name)
        started = []
        for rank in range(workers):
            host, local_rank = divmod(rank, per_machine)
            place = {"DMLC_WORKER_ID": host, "BYTEPS_LOCAL_RANK": local_rank}
            place["DMLC_ROLE"] = "worker"
            started.append(self._start_worker(rank, host, words(rank), **cluster, **place))
        return started

    def _start_horovod(
        self, workers: int, words: Callable[[int], Sequence[str]], per_machine: int
    ) -> list[subprocess.Popen]:
        machines = workers // per_machine
        addresses = self._network.addresses[:machines]
        hosts = ",".join(f"{address}:{per_machine}" for address in addresses)
        rendezvous = self.start(-1, [str(HERE / "rendezvous.py"), hosts])
        common = {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": self._network.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._network.hub,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": int(rendezvous.stdout.readline()),
            "HOROVOD_SIZE": workers,
            "HOROVOD_LOCAL_SIZE": per_machine,
            "HOROVOD_CROSS_SIZE": machines,
        }
        started = []
        for rank in range(workers):
            host, local_rank = divmod(rank, per_machine)
            place = {
                "HOROVOD_HOSTNAME": addresses[host],
                "HOROVOD_RANK": rank,
                "HOROVOD_LOCAL_RANK": local_rank,
                "HOROVOD_CROSS_RANK": host,
            }
            started.append(self._start_worker(rank, host, words(rank), **common, **place))
        return started

    def _start_torch(
        self, workers: int, words: Callable[[int], Sequence[str]], per_machine: int
    ) -> list[subprocess.Popen]:
        """Start workers with torchrun's variables; torchrun itself starts those of one host."""
        common = {
            "MASTER_ADDR": self._network.addresses[0],
            "MASTER_PORT": self._port,
            "GLOO_SOCKET_IFNAME": self._network.interface,
            "WORLD_SIZE": workers,
            "LOCAL_WORLD_SIZE": per_machine,
        }
        started = []
        for rank in range(workers):
            host, local_rank = divmod(rank, per_machine)
            place = {"RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": host}
            started.append(self._start_worker(rank, host, words(rank), **common, **place))
        return started

    def processor_seconds(self) -> float:
        """Return the processor time of all processes and their children so far."""
        sessions = {process.pid for process in self._started}
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # the process has ended
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._alarm)
        for process in self._started:
            with suppress(ProcessLookupError):  # children may live on without the process
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()


def read_line(process: subprocess.Popen, begin: str) -> str:
    """Read until a line starts with `begin`; returns the rest of that line.

    Raises
    ------
    RuntimeError
        If the process ends before it prints such a line.
    """
    for line in process.stdout:
        if line.startswith(begin):
            return line[len(begin) :]
    raise RuntimeError(f"a worker ended before it printed {begin!r}")

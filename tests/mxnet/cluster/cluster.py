"""Starts a real cluster on this machine: scheduler, servers and workers are processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

import pytest

from gluon_gc.launch.cli.tasks import service
from tests.mxnet.cluster.nursery import Forked, Nursery, die_with_parent
from tests.processes import clean_environ, free_port

BPSLAUNCH = Path(__file__).resolve().parents[3] / "bpslaunch.py"
WORKER = Path(__file__).with_name("worker.py")
TIMEOUT = 90  # seconds for a whole cluster

Job = Callable[..., Any]
Arguments = Optional[Mapping[str, Any]]

_PREAMBLE = """
import os, sys
import mxnet as mx
import gluon_gc as bps

def exchange():
    array = mx.nd.ones(1)
    bps.byteps_push_pull(array, name="x")
    array.wait_to_read()

"""


def of_no_cluster() -> dict[str, str]:
    """Return this process's environment without the variables of a cluster."""
    ours = ("DMLC_", "BYTEPS_", "PS_")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@lru_cache(maxsize=None)
def nursery() -> Nursery:
    """Return the nursery of this process's tests. It is started by the first call."""
    return Nursery(of_no_cluster())


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


class Cluster:
    """The processes of one cluster. `stop` always ends them."""

    def __init__(self, folder: Path, workers: int, servers: int, **variables: Any) -> None:
        self.folder = folder
        self.workers = workers
        self.processes: dict[str, subprocess.Popen | Forked] = {}
        self.environment = {
            **of_no_cluster(),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            **{name: str(value) for name, value in variables.items()},
        }
        self._servers = servers

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_roles(self, suffix: str = "") -> None:
        """Start the scheduler and the servers."""
        self.start(f"scheduler{suffix}", service("scheduler"))
        for server in range(self._servers):
            self.start(f"server{server}{suffix}", service("server"))

    def start_script(self, rank: int, script: str, before: str = "", **variables: Any) -> None:
        """Start worker `rank` with a script that runs after `bps.init()` and has `exchange()`."""
        code = f"{_PREAMBLE}{before}bps.init()\n{script}"
        worker = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": rank, **variables}
        self.start(f"worker{rank}", [sys.executable, "-c", code], **worker)

    def start_node(
        self, role: str, rank: int = 0, script: str = "", framework: str = "mxnet", **variables: Any
    ) -> None:
        """Start a node without a framework. It only joins the cluster, and has a `lifeline`."""
        code = (
            "import os, time\nfrom gluon_gc import env\n"
            "from gluon_gc.launch.scheduler.lifeline import join\n"
            f"lifeline = join(env.cluster('{role}'), 60, '{framework}', ('host', 1))\n"
            f"print('joined', lifeline.store, flush=True)\n{script}"
        )
        node = {"DMLC_WORKER_ID": rank, **variables} if role == "worker" else variables
        self.start(f"{role}{rank}", [sys.executable, "-c", code], **node)

    def command(self, rank: int | str, job: Job, arguments: Arguments = None) -> list[str]:
        """Return the command of a worker that runs a job (worker.py)."""
        file = self.folder / f"job{rank}"
        file.write_bytes(pickle.dumps((job.__module__, job.__name__, arguments or {})))
        return [sys.executable, str(WORKER), str(file), str(self.result_file(rank))]

    def start_worker(
        self, rank: int, job: Job, arguments: Arguments = None, **variables: Any
    ) -> None:
        worker = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": rank, **variables}
        self.start(f"worker{rank}", self.command(rank, job, arguments), **worker)

    def start(self, name: str, command: list[str], **variables: Any) -> None:
        environment = {**self.environment, **{k: str(v) for k, v in variables.items()}}
        log_file = self.folder / f"{name}.log"
        log_file.touch()
        if nursery().serves(command, environment):
            self.processes[name] = nursery().start(command, environment, log_file)
            return
        with open(log_file, "w") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def leave_out_dmlc(self) -> None:
        """Start further processes without the variables of a scheduler and servers."""
        for name in [n for n in self.environment if n.startswith("DMLC_")]:
            del self.environment[name]

    def result_file(self, rank: int | str) -> Path:
        return self.folder / f"result{rank}"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def logs(self) -> str:
        """Return the output of all processes."""
        return "".join(f"\n--- {name}\n{self.log(name)}" for name in self.processes)

    def wait(self, name: str, timeout: float = TIMEOUT) -> int:
        """Return the exit code of a process; if it does not end in time, fail with all output."""
        try:
            return self.processes[name].wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end within {timeout} s{self.logs()}") from None

    def wait_for(self, path: Path, timeout: float = TIMEOUT) -> None:
        """Wait until a process has created a file."""
        self.wait_until(path.exists, f"{path.name} was not made", timeout)

    def wait_for_line(self, name: str, line: str, timeout: float = TIMEOUT) -> None:
        """Wait until a process has printed a line that contains `line`."""
        self.wait_until(lambda: line in self.log(name), f"{name} did not say {line!r}", timeout)

    def wait_until(
        self, happened: Callable[[], bool], otherwise: str, timeout: float = TIMEOUT
    ) -> None:
        """Wait until `happened()` is true, or fail with the message `otherwise`."""
        deadline = time.monotonic() + timeout
        while not happened():
            assert time.monotonic() < deadline, f"{otherwise} within {timeout} s{self.logs()}"
            time.sleep(0.02)

    def ended(self) -> list[str]:
        """Return the names of the processes that have ended."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def suspend(self, name: str) -> None:
        """Stop a process until it gets SIGCONT; returns after all its threads have stopped."""
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        threads = Path("/proc", str(process.pid), "task")
        self.wait_until(lambda: _states(threads) == {"T"}, f"{name} did not stop")

    def wait_for_end(self) -> None:
        """Wait until all processes have ended with exit code 0."""
        for name in sorted(
            self.processes, reverse=True
        ):  # workers before servers and the scheduler
            code = self.wait(name)
            assert code == 0, f"{name} ended with {code}\n{self.log(name)}"

    def results(self) -> list[Any]:
        """Wait for the end of all processes, and return what each worker's job returned."""
        self.wait_for_end()
        return [self.result(rank) for rank in range(self.workers)]

    def result(self, rank: int) -> Any:
        return pickle.loads(self.result_file(rank).read_bytes())

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _states(threads: Path) -> set[str]:
    """Return the states of a process's threads as letters; empty if a thread has just ended."""
    with suppress(OSError):
        stats = [stat.read_text() for stat in threads.glob("*/stat")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}
    return set()


def start_cluster(
    folder: Path,
    job: Job,
    arguments: Arguments = None,
    workers: int = 2,
    servers: int = 1,
    variables: dict[str, Any] | None = None,
) -> Cluster:
    """Start a job on every worker of a cluster with a parameter server.

    If BYTEPS_LOCAL_SIZE is among the variables, it is the number of workers on each machine.
    """
    variables = variables or {}
    local_size = variables.get("BYTEPS_LOCAL_SIZE", 1)
    machines = {"DMLC_NUM_WORKER": workers // local_size}
    cluster = Cluster(folder, workers, servers, **{**variables, **machines})
    cluster.start_roles()
    for rank in range(workers):
        machine, local_rank = divmod(rank, local_size)
        numbers = {"DMLC_WORKER_ID": machine, "BYTEPS_LOCAL_RANK": local_rank}
        cluster.start_worker(rank, job, arguments, **numbers)
    return cluster


def start_machine(
    folder: Path,
    job: Job,
    arguments: Arguments = None,
    workers: int = 2,
    variables: dict[str, Any] | None = None,
) -> Cluster:
    """Start a job on the workers of one machine, without scheduler and servers."""
    own = {"DMLC_NUM_WORKER": 1, "BYTEPS_LOCAL_SIZE": workers, **(variables or {})}
    cluster = Cluster(folder, workers, 0, **own)
    del cluster.environment["BYTEPS_FORCE_DISTRIBUTED"]
    for rank in range(workers):
        numbers = {"DMLC_WORKER_ID": 0, "BYTEPS_LOCAL_RANK": rank}
        cluster.start_worker(rank, job, arguments, **numbers)
    return cluster


def launch(script: str, *options: str, **variables: Any) -> list[str]:
    """Run a script under bpslaunch with a clean environment; returns the lines of its output."""
    command = [sys.executable, str(BPSLAUNCH), *options, sys.executable, "-c", script]
    process = subprocess.run(
        command,
        env={**clean_environ(), **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=TIMEOUT,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout.splitlines()


def start_horovod(
    folder: Path,
    job: Job,
    arguments: Arguments = None,
    workers: int = 2,
    variables: dict[str, Any] | None = None,
    hosts: str | None = None,
) -> Cluster:
    """Start a job on workers that horovodrun starts."""
    needs_horovod()
    cluster = Cluster(folder, workers, 0, **(variables or {}))
    cluster.leave_out_dmlc()
    horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", str(workers)]
    horovodrun += ["-H", hosts] if hosts else []
    cluster.start("horovodrun", [*horovodrun, *cluster.command("RANK", job, arguments)])
    return cluster


def start_local(
    folder: Path, job: Job, arguments: Arguments = None, variables: dict[str, Any] | None = None
) -> Cluster:
    """Start a job in one process without a cluster."""
    cluster = Cluster(folder, 1, 0, **(variables or {}))
    cluster.leave_out_dmlc()
    del cluster.environment["BYTEPS_FORCE_DISTRIBUTED"]
    cluster.start("worker0", cluster.command(0, job, arguments))
    return cluster


def needs_horovod() -> None:
    """Skip the current test if Horovod is not installed."""
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")


class HorovodWorkers(Cluster):
    """Horovod workers that are forked; their rendezvous server runs in this process.

    horovodrun starts a new Python for each worker, and four workers take 11 processor seconds to
    start. These have horovodrun's variables. `hosts` has the form of horovodrun's option -H.
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

    def start_worker(
        self, rank: int, job: Job, arguments: Arguments = None, **variables: Any
    ) -> None:
        command = self.command(rank, job, arguments)
        self.start(f"worker{rank}", command, **self._slots[rank], **variables)

    def stop(self) -> None:
        super().stop()
        self._rendezvous.stop()


def start_forked_horovod(
    folder: Path,
    job: Job,
    arguments: Arguments = None,
    workers: int = 2,
    variables: dict[str, Any] | None = None,
    hosts: str | None = None,
) -> Cluster:
    """Start a job on Horovod workers, by default all on this host."""
    needs_horovod()
    cluster = HorovodWorkers(folder, workers, hosts or f"localhost:{workers}", **(variables or {}))
    for rank in range(workers):
        cluster.start_worker(rank, job, arguments)
    return cluster

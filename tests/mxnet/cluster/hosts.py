"""A cluster in which each process has its own host, which is a network namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmark.network import Network
from tests.mxnet.cluster.cluster import TIMEOUT, Cluster
from tests.mxnet.cluster.jobs import until_told

RATE = 1e9


def namespaces() -> str:
    """Return the list of existing network namespaces."""
    return subprocess.run(["ip", "netns"], capture_output=True, encoding="utf-8", check=True).stdout


def _allowed() -> bool:
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"gctest{os.getpid()}"
    created = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if created:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return created


needs_namespaces = pytest.mark.skipif(
    not _allowed(), reason="network namespaces need root, and ip and tc of iproute2"
)


class Hosts(Cluster):
    """A context manager for workers, servers and a scheduler, each on its own host."""

    def __init__(self, folder: Path, workers: int, servers: int, **variables: Any) -> None:
        super().__init__(folder, workers, servers, **variables)
        names = ["scheduler"]
        names += [f"server{i}" for i in range(servers)] + [f"worker{i}" for i in range(workers)]
        self.hosts = {name: host for host, name in enumerate(names)}
        self.network = Network(len(names), RATE)
        address = self.network.addresses[self.hosts["scheduler"]]
        self.environment.update(DMLC_PS_ROOT_URI=address, DMLC_INTERFACE=self.network.interface)
        del self.environment["DMLC_NODE_HOST"]

    def __enter__(self) -> "Hosts":
        self.network.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.network.__exit__()

    def start(self, name: str, command: list[str], **variables: Any) -> None:
        super().start(name, self.network.command(self.hosts[name], command), **variables)

    def train(self) -> None:
        """Start all processes; the workers run `until_told`."""
        self.start_roles()
        for rank in range(self.workers):
            self.start_worker(rank, until_told, {"folder": str(self.folder)})
        self.wait_for_steps(1)

    def steps(self) -> int:
        """Return the number of steps that all workers have done."""
        files = [self.folder / f"step{rank}" for rank in range(self.workers)]
        return min(int(file.read_text()) if file.exists() else 0 for file in files)

    def wait_for_steps(self, more: int, timeout: float = 2 * TIMEOUT) -> None:
        """Wait until all workers have done `more` steps; no process may end meanwhile."""
        goal = self.steps() + more

        def reached() -> bool:
            assert not self.ended(), f"{self.ended()} ended{self.logs()}"
            return self.steps() >= goal

        self.wait_until(reached, f"{more} steps were not made", timeout)

    def finish(self) -> list[dict[str, Any]]:
        """Let all workers end after the same step, a few steps from now; returns their results."""
        part = self.folder / "part"
        part.write_text(str(self.steps() + 20))
        part.rename(self.folder / "last")
        return self.results()

    def pass_time(self, seconds: float) -> None:
        """Sleep, and check that no process ends meanwhile."""
        time.sleep(seconds)
        assert not self.ended(), f"{self.ended()} ended{self.logs()}"

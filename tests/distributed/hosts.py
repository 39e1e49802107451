"""A cluster of which each process has a host, that is a network namespace, of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, List

from benchmark.network import Network
from tests.distributed.cluster import TIMEOUT, Cluster

RATE = 1e9


class Hosts(Cluster):
    """Workers, servers and the scheduler, each on its own host; a context manager.

    Parameters
    ----------
    folder : Path
        Where logs and results go.
    workers, servers : int
        How many.
    variables
        What is in the environment of all.
    """

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

    def start(self, name: str, command: List[str], **variables: Any) -> None:
        super().start(name, self.network.command(self.hosts[name], command), **variables)

    def train(self) -> None:
        """Start everything, the workers with `jobs.until_told`."""
        self.start_roles()
        for rank in range(self.workers):
            self.start_worker(rank, "until_told", {"folder": str(self.folder)})
        self.wait_for_steps(1)

    def steps(self) -> int:
        """How many steps all workers have made."""
        files = [self.folder / f"step{rank}" for rank in range(self.workers)]
        return min(int(file.read_text()) if file.exists() else 0 for file in files)

    def wait_for_steps(self, more: int, timeout: float = 2 * TIMEOUT) -> None:
        """Wait until all workers have made some steps more, and no process has ended."""
        goal = self.steps() + more

        def reached() -> bool:
            assert not self.ended(), f"{self.ended()} ended{self.logs()}"
            return self.steps() >= goal

        self.wait_until(reached, f"{more} steps were not made", timeout)

    def finish(self) -> List[Dict[str, Any]]:
        """Let the workers end at the same step, a few from now; what they have then."""
        part = self.folder / "part"
        part.write_text(str(self.steps() + 20))
        part.rename(self.folder / "last")
        return self.results()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in which no process may end."""
        time.sleep(seconds)
        assert not self.ended(), f"{self.ended()} ended{self.logs()}"

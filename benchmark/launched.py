"""Starts a cluster on this machine with one bpslaunch per node, as on several machines."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Sequence

BPSLAUNCH = Path(__file__).resolve().parents[1] / "bpslaunch.py"
_OURS = ("DMLC_", "BYTEPS_", "PS_", "GLUON_GC_")
_libc = ctypes.CDLL(None)


class Line(NamedTuple):
    """A line of a node's log, and when it was read."""

    time: float
    text: str


def _die_with_the_caller() -> None:
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Launched:
    """A context manager for nodes called "scheduler", "server N" and "worker N".

    Leaving the context kills all nodes.

    Parameters
    ----------
    folder : Path
        Each node's output goes to NODE.log in this folder.
    workers, servers : int
        The numbers of workers and servers.
    **variables
        Environment variables of all nodes.

    Attributes
    ----------
    port : int
        The scheduler's port.
    said : dict
        The lines that each node has printed so far, by node.
    """

    def __init__(self, folder: Path, workers: int, servers: int, **variables: object) -> None:
        self.folder = folder
        self.port = _free_port()
        self.said: dict[str, list[Line]] = {}
        self.launchers: dict[str, subprocess.Popen] = {}
        clean = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
        self._environ = {
            **clean,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_LOG_LEVEL": "INFO",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            **{name: str(value) for name, value in variables.items()},
        }

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for launcher in self.launchers.values():
            launcher.kill()  # its child ends with it
            launcher.wait()

    def launch(self, node: str, command: Sequence[str] = (), max_restarts: int = 0) -> None:
        """Start a node's bpslaunch; a worker needs a command."""
        role, _, rank = node.partition(" ")
        own = {"DMLC_ROLE": role, **({"DMLC_WORKER_ID": rank} if role == "worker" else {})}
        words = [sys.executable, str(BPSLAUNCH), "--max-restarts", str(max_restarts), *command]
        file = self.folder / f"{node.replace(' ', '')}.log"
        with open(file, "w") as log:
            self.launchers[node] = subprocess.Popen(
                words,
                env={**self._environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_the_caller,
            )
        self.said[node] = []
        threading.Thread(target=self._follow, args=(node, file), daemon=True).start()

    def _follow(self, node: str, file: Path) -> None:
        with open(file) as log:
            while True:
                ended = self.launchers[node].poll() is not None
                for text in log:
                    self.said[node].append(Line(time.monotonic(), text.rstrip("\n")))
                if ended:
                    return
                time.sleep(0.02)

    def child(self, node: str) -> int | None:
        """Return the process id of the child of a node's bpslaunch, or None if there is none."""
        pid = self.launchers[node].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def restarts(self, node: str) -> int:
        """Return how often a node was restarted."""
        return sum("; restart " in text for _, text in self.said[node])

    def wait_until_said(self, node: str, text: str, seconds: float) -> None:
        """Wait until a node has printed a line that contains a text."""
        self.wait_until(lambda: any(text in line.text for line in self.said[node]), text, seconds)

    def wait_until(self, happened, what: str, seconds: float) -> None:
        """Wait until happened() is true; after `seconds`, raise a TimeoutError with all logs."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s in vain for: {what}\n{self.logs()}")
            time.sleep(0.02)

    def codes(self, seconds: float) -> dict[str, int | None]:
        """Return each node's exit code; None if the node has not ended after `seconds`."""
        deadline = time.monotonic() + seconds
        found: dict[str, int | None] = {}
        for node, launcher in self.launchers.items():
            try:
                found[node] = launcher.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                found[node] = None
        return found

    def logs(self) -> str:
        """Return the last lines of each node's log."""
        return "\n".join(
            f"--- {node}\n" + "\n".join(line.text for line in lines[-30:])
            for node, lines in self.said.items()
        )

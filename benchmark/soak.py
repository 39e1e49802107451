"""Disturbs a training run at random for some minutes, and checks that the result is the same.

    python benchmark/soak.py --minutes 10 --seed 1

A scheduler, two servers and two workers train a small network. Each runs under its own
bpslaunch --max-restarts. Meanwhile their processes are killed, stopped, or frozen for longer than
PS_HEARTBEAT_TIMEOUT, and foreign data arrives at their ports. As root, the script runs in its own
network namespace, where it also resets connections and slows the link down. At the end the weights
must equal those of an undisturbed run, and no process may have grown.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from launched import Launched
from table import print_row

TRAINEE = Path(__file__).with_name("trainee.py")
NODES = ("scheduler", "server 0", "server 1", "worker 0", "worker 1")
_MOST_STEPS = 20000
_PERIOD = 20  # steps between checkpoints
_HEARTBEAT = 5  # seconds, PS_HEARTBEAT_TIMEOUT
_TIMEOUT = 30  # seconds, GLUON_GC_TIMEOUT: limits the wait for a message that a reset has lost
_PATIENCE = 180.0  # seconds until training must go on after an event
_IN_A_ROW = 3  # events without a checkpoint in between
_OWN_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
_MOST = (65536, 0, 0)  # kB, threads and descriptors by which a process may grow
_PROGRAMS = ("unshare", "ip", "ss", "tc")
_STRANGERS = (
    b"GET /metrics HTTP/1.1\r\nHost: cluster\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # as TLS begins
    bytes(65536),
    b'{"role": "worker", ',  # the start of a message without its end
)


class Size(NamedTuple):
    """The resources of a process."""

    kilobytes: int
    threads: int
    descriptors: int


def size_of(pid: int) -> Size:
    """Return the current size of a process."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Size(int(status["VmRSS"].split()[0]), int(status["Threads"]), descriptors)


def steady_size_of(pid: int) -> Size:
    """Return the least size of a process within 0.1 s, which leaves out briefly opened files."""
    sizes = []
    for _ in range(5):
        sizes.append(size_of(pid))
        time.sleep(0.02)
    return Size(*map(min, zip(*sizes)))


def _listening(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # the process is ending
        return []
    ports = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, address, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in files:
            ports.append(int(address.rpartition(":")[2], 16))
    return ports


class Growth:
    """Collects the sizes of processes during the training."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], list[Size]] = {}

    def note(self, nodes: Launched) -> None:
        """Record the current size of every process that is running."""
        for node, launcher in nodes.launchers.items():
            for name, pid in ((node, nodes.child(node)), (f"bpslaunch of {node}", launcher.pid)):
                try:
                    size = steady_size_of(pid)
                    self._sizes.setdefault((name, pid), []).append(size)
                except (OSError, KeyError):  # the process is ending
                    pass

    def most(self) -> dict[str, Size]:
        """Return the largest growth of each process between two of its starts, by its name."""
        found: dict[str, Size] = {}
        for (name, _), sizes in self._sizes.items():
            grown = [last - first for first, last in zip(sizes[0], sizes[-1])]
            found[name] = Size(*map(max, zip(grown, found.get(name, (0, 0, 0)))))
        return found


class Soak:
    """A cluster in training, and the events that disturb it.

    Parameters
    ----------
    nodes : Launched
    rng : Random
    alone : bool
        Whether the network namespace is the script's own, so that it may disturb the network.
    """

    def __init__(self, nodes: Launched, rng: random.Random, alone: bool) -> None:
        self._nodes = nodes
        self._rng = rng
        self.growth = Growth()
        self.counts: Counter = Counter()
        self.events: list[Callable[[], str]] = [
            self.kill,
            self.terminate,
            self.stop,
            self.freeze,
            self.scan,
            self.scan_any,
        ]
        if alone:
            self.events += [self.reset, self.slow]

    # Events. Each returns a description of its target.

    def kill(self) -> str:
        """Send SIGKILL to a node."""
        return self._signal(signal.SIGKILL)

    def terminate(self) -> str:
        """Send SIGTERM to a node."""
        return self._signal(signal.SIGTERM)

    def stop(self) -> str:
        """Stop a node for less than the heartbeat time-out; nothing may restart."""
        return self._suspend(self._rng.uniform(0.5, _HEARTBEAT - 2))

    def freeze(self) -> str:
        """Stop a node for longer than the heartbeat time-out; the other nodes end without it."""
        return self._suspend(_HEARTBEAT + 6)

    def scan(self) -> str:
        """Send foreign data to the rendezvous port, which ps-lite uses after all nodes joined."""
        return self._talk_to(self._nodes.port)

    def scan_any(self) -> str:
        """Send foreign data to another port; ps-lite aborts on data that it cannot parse."""
        ports = {port for pid in self._pids() for port in _listening(pid)}
        return self._talk_to(self._rng.choice(sorted(ports) or [self._nodes.port]))

    def reset(self) -> str:
        """Reset all connections."""
        subprocess.run(["ss", "-K", "-t", "state", "established"], capture_output=True, check=True)
        return "all connections"

    def slow(self) -> str:
        """Limit the link to 2 Mbit/s for some seconds."""
        seconds = self._rng.uniform(1, 3)
        rate = ["rate", "2mbit", "burst", "64kbit", "latency", "400ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", *rate], check=True)
        time.sleep(seconds)
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
        return f"the link, at 2 Mbit/s for {seconds:.1f} s"

    # Helpers of the events

    def _pids(self) -> list[int]:
        return [pid for pid in map(self._nodes.child, NODES) if pid is not None]

    def _signal(self, number: int) -> str:
        node = self._rng.choice(NODES)
        pid = self._nodes.child(node)
        if pid is None:
            return f"{node}, which is not running"
        os.kill(pid, number)
        return node

    def _suspend(self, seconds: float) -> str:
        node = self._rng.choice(NODES)
        pid = self._nodes.child(node)
        if pid is None:
            return f"{node}, which is not running"
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):  # its bpslaunch ends it when another node has ended
            os.kill(pid, signal.SIGCONT)
        return f"{node} for {seconds:.1f} s"

    def _talk_to(self, port: int) -> str:
        data = self._rng.choice(_STRANGERS)
        target = f"port {port} with {data[:14]!r}"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as stranger:
                stranger.sendall(data)
                stranger.recv(1)
        except OSError:
            pass
        return target

    # The run

    def steps(self) -> int:
        """Return the number of steps that the slower worker has done."""
        files = [self._nodes.folder / f"steps.{rank}" for rank in range(2)]
        return min(int(file.read_text()) if file.exists() else 0 for file in files)

    def train_on(self, steps: int) -> None:
        """Wait until the workers have done this many more steps."""
        until = self.steps() + steps
        self._nodes.wait_until(lambda: self.steps() >= until, f"step {until}", _PATIENCE)

    def run(self, seconds: float) -> int:
        """Disturb the training for some seconds; returns the step after which it may end."""
        self.train_on(_PERIOD)
        began, in_a_row = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            event = self._rng.choice(self.events)
            self.counts[event.__name__] += 1
            since = time.monotonic() - began
            print(f"{since:6.1f} s, step {self.steps()}: {event.__name__} {event()}", flush=True)
            in_a_row += 1
            time.sleep(self._rng.uniform(0, 3))
            if in_a_row == _IN_A_ROW:
                self._settle()
                in_a_row = 0
        self._settle()
        return self.steps() + 2 * _PERIOD

    def _settle(self) -> None:
        """Wait until all train again, and record their sizes."""
        self.train_on(_PERIOD)
        self.growth.note(self._nodes)
        self.train_on(3 * _PERIOD)
        self.growth.note(self._nodes)


def started(folder: Path, steps: int, pause: float, max_restarts: int) -> Launched:
    """Start a cluster that trains."""
    folder.mkdir()
    variables = {"PS_HEARTBEAT_TIMEOUT": _HEARTBEAT, "GLUON_GC_TIMEOUT": _TIMEOUT}
    nodes = Launched(folder, workers=2, servers=2, GLUON_GC_CONNECT_TIMEOUT=120, **variables)
    command = [sys.executable, str(TRAINEE), str(folder), "--steps", str(steps)]
    command += ["--period", str(_PERIOD), "--pause", str(pause)]
    for node in NODES:
        nodes.launch(node, command if node.startswith("worker") else (), max_restarts)
    return nodes


def checksums(nodes: Launched) -> list[str]:
    """Wait for all nodes to end; returns the checksum of each worker's weights.

    Raises
    ------
    RuntimeError
        If the exit code of a node is not 0.
    """
    codes = nodes.codes(10 * _PATIENCE)
    if any(code != 0 for code in codes.values()):
        raise RuntimeError(f"the nodes' exit codes are {codes}\n{nodes.logs()}")
    return [(nodes.folder / f"sum.{rank}").read_text() for rank in range(2)]


def soak(args: argparse.Namespace, folder: Path) -> list[str]:
    """Train disturbed, then train as many steps undisturbed; returns the faults found."""
    with started(folder / "disturbed", _MOST_STEPS, args.pause, max_restarts=1000000) as nodes:
        run = Soak(nodes, random.Random(args.seed), args.alone)
        steps = run.run(60 * args.minutes)
        part = nodes.folder / "steps.part"
        part.write_text(str(steps))
        part.rename(nodes.folder / "steps")
        found = checksums(nodes)
        restarts = {node: nodes.restarts(node) for node in NODES}
    with started(folder / "undisturbed", steps, pause=0.0, max_restarts=0) as nodes:
        expected = checksums(nodes)
    print(f"\n{steps} steps; weights {found[0]}, undisturbed {expected[0]}\n")
    for number, (event, times) in enumerate(sorted(run.counts.items())):
        print_row({"event": event, "times": times}, first=number == 0)
    print()
    faults = [] if found == expected else [f"the weights are {found}, but must be {expected}"]
    for number, (name, grown) in enumerate(sorted(run.growth.most().items())):
        row = {"process": name, "restarts": restarts.get(name, ""), "RSS": f"{grown[0]:+} kB"}
        print_row({**row, "threads": f"{grown[1]:+}", "descriptors": f"{grown[2]:+}"}, number == 0)
        if any(growth > most for growth, most in zip(grown, _MOST)):
            faults.append(f"{name} has grown by {grown}")
    return faults


def main() -> int:
    """Run the test; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between steps")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.alone and _may_be_alone():
        again = [__file__, *sys.argv[1:], "--seed", str(args.seed), "--alone"]
        os.execvp(_OWN_NETWORK[0], [*_OWN_NETWORK, sys.executable, *again])
    print(f"--seed {args.seed} --minutes {args.minutes:g}")
    if not args.alone:
        print("without root, ip, tc and ss, the network itself is not disturbed")
    with tempfile.TemporaryDirectory() as folder:
        faults = soak(args, Path(folder))
    print("\n" + ("\n".join(faults) or "the weights are equal and no process has grown"))
    return min(len(faults), 1)


def _may_be_alone() -> bool:
    """Return whether this user can create a network namespace and has the tools for it."""
    if not all(map(shutil.which, _PROGRAMS)):
        return False
    return subprocess.run([*_OWN_NETWORK, "true"], capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares methods of training across sites, undisturbed and under faults.

Four workers train a language model, each in a network namespace behind a link of 20 Mbit/s. With a
mailbox, a worker can only open connections to the port of the object store, moto's S3 server on the
hub. The workers of torchft's DiLoCo, and of DistributedDataParallel under torchrun, must reach each
other, so that they have no firewall.

Each method trains twice. In the disturbed run, one worker is killed with SIGKILL every 15 s and
started again, and another one sleeps two thirds of each step. All other workers need --pace seconds
for a step, because they share the processors of this machine and must not become faster when one is
missing. The links add no delay. It needs root, iproute2, nftables, PyTorch and moto in the
environment of --torch-python, and torchft 0.2.0 in that of --torchft-python.

    python benchmark/sites.py [--seconds S] [--only REGEX] [--results FOLDER]

The columns of the table:

- goodput: steps that counted, as a share of the steps that four workers make alone in that time
- of the others: the same for the two workers that are neither killed nor slow
- of all made: steps that counted, as a share of all steps that were made
- loss: of the last saved model, on validation data, in nats per byte
- at equal samples: that loss less the undisturbed run's after as many samples
- joins: the most rounds that ended without a worker after it was started again, and how many such
  workers were counted at all. Those that were killed again within two rounds are left out
- s per round: of DistributedDataParallel, one checkpoint in 5 steps
- MB up, MB down: a worker's traffic in a minute, on average
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np
from network import Network, bits
from processes import HERE, PORT, Processes
from table import print_row


class Method(NamedTuple):
    """A method of training: a worker of sites_worker.py, and the options of local_steps."""

    worker: str
    options: dict[str, Any] = {}


WORKER = HERE / "sites_worker.py"
SITES, KILLED, SLOW = 4, 1, 2  # site 0 has torchrun's rendezvous
SLOWNESS = 3
_MAILBOX = {"every": "3 s", "outer_momentum": 0.9}  # as torchft's
METHODS = {
    "mailbox": Method("mailbox", _MAILBOX),
    "mailbox, overlap": Method("mailbox", {**_MAILBOX, "overlap": 5, "mix": 0.5}),
    "torchft DiLoCo": Method("torchft"),
    "torchrun DDP": Method("ddp"),
}
_SERVICE_PORT = 5000
_START_SECONDS = 120  # until all workers are ready
_JOIN_ROUNDS = 2  # that may end before a restarted worker is counted


class Run(NamedTuple):
    """The records of a run.

    Attributes
    ----------
    begin, end : float
    made : list of int
        The steps that each site made.
    rounds, starts : list of dict
        The lines of rounds.jsonl and starts.jsonl, in the order of their times.
    losses : dict of int to float
        The validation loss after some of the rounds.
    ended : list of float
        The times at which workers were killed, or ended themselves.
    crashes : int
        The number of workers that ended themselves.
    sent, received : float
        The mean bytes of a worker.
    store : dict of str to float
        The seconds of each operation of the store when nothing else uses it.
    """

    begin: float
    end: float
    made: list[int]
    rounds: list[dict[str, Any]]
    starts: list[dict[str, Any]]
    losses: dict[int, float]
    ended: list[float]
    crashes: int
    sent: float
    received: float
    store: dict[str, float]

    def counted(self) -> np.ndarray:
        """Return the steps of each site that counted."""
        steps = np.zeros(SITES, int)
        for record in self.rounds:
            steps[_site(record["worker"])] += record["steps"]
        return steps

    def loss_curve(self) -> np.ndarray:
        """Return the steps that had counted, and the loss, for each saved model; shape (n, 2)."""
        steps = {each: 0 for each in self.losses}
        for record in self.rounds:
            for each in steps:
                steps[each] += record["steps"] * (record["round"] <= each)
        return np.array([(steps[each], self.losses[each]) for each in sorted(steps)])

    def joins(self) -> list[int | None]:
        """Return the rounds that ended before each restarted worker was counted, None: never."""
        found: list[int | None] = []
        for start in self.starts:
            if start["time"] < self.begin:
                continue
            since = [r for r in self.rounds if r["time"] > start["time"]]
            own = [r["round"] for r in since if r["worker"] == start["worker"]]
            until = min((t for t in self.ended if t > start["time"]), default=self.end)
            seen = sorted({r["round"] for r in since if r["time"] < until})
            if own:
                found.append(own[0] - seen[0])
            elif len(seen) > _JOIN_ROUNDS:
                found.append(None)
        return found


def _site(worker: str) -> int:
    """Return the site in the name of a worker."""
    return int(worker.partition("-")[0][len("site") :])


def _read(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a line that a kill has cut short is left out."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return sorted(found, key=lambda record: record["time"])


class Training:
    """The workers of one method on a network, and the files that they write.

    Parameters
    ----------
    network : Network
    processes : Processes
    args : Namespace
    method : Method
    folder : Path
    disturbed : bool
    """

    def __init__(
        self,
        network: Network,
        processes: Processes,
        args: argparse.Namespace,
        method: Method,
        folder: Path,
        disturbed: bool,
    ) -> None:
        self._network, self._processes, self._args = network, processes, args
        self._method, self._folder, self._disturbed = method, folder, disturbed
        self._service = f"http://{network.hub}:{_SERVICE_PORT}"
        self._ended: list[float] = []
        self._crashes = 0

    def _start(self, host: int, words: Sequence[str], log: str) -> subprocess.Popen:
        variables = {
            "GLOO_SOCKET_IFNAME": self._network.interface,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self._service,
            "AWS_ALLOW_HTTP": "true",
        }
        return self._processes.start(host, words, self._folder / f"{log}.log", **variables)

    def _start_program(self, host: int, program: str, **options: object) -> subprocess.Popen:
        """Start a program of sites_worker.py."""
        return self._start(host, self._words(program, **options), program)

    def _words(self, program: str, **options: object) -> list[str]:
        url = "s3://runs/run" if self._method.worker == "mailbox" else self._service
        options = {"url": url, "port": _SERVICE_PORT, "keep": self._args.keep, **options}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [str(WORKER), program, str(self._folder), *words]

    def _start_service(self) -> None:
        """Start the object store, or torchft's lighthouse, on the hub."""
        if self._method.worker == "torchft":
            self._start_program(-1, "lighthouse", grace=self._args.grace)
        elif self._method.worker == "mailbox":
            for host in range(SITES):
                self._network.only_outgoing(host, _SERVICE_PORT)
            where = ["-H", self._network.hub, "-p", str(_SERVICE_PORT)]
            self._start(-1, ["-m", "moto.server", *where], "moto")
            self._start_program(-1, "bucket").wait()
            self._start_program(-1, "watch")

    def _start_worker(self, host: int) -> subprocess.Popen:
        args = self._args
        slowness = SLOWNESS if self._disturbed and host == SLOW else 1
        words = self._words(
            self._method.worker,
            host=host,
            pace=args.pace * slowness,
            every=args.every,
            algorithm=json.dumps({"name": "local_steps", **self._method.options}),
            compression=args.compression,
            grace=args.grace,
        )
        if self._method.worker == "ddp":
            nodes = f"--nnodes {SITES} --nproc-per-node 1 --max-restarts 1000000"
            rendezvous = f"--rdzv-backend c10d --rdzv-endpoint {self._network.addresses[0]}:{PORT}"
            own = f"--local-addr {self._network.addresses[host]}"
            job = f"-m torch.distributed.run {nodes} {rendezvous} {own} --no-python"
            until_end = "setpriv --pdeathsig KILL"  # torchrun may be killed before its worker
            words = [*job.split(), *until_end.split(), args.torch_python, *words]
        return self._start(host, words, f"worker{host}")

    def _await_workers(self) -> None:
        """Wait until all workers are ready to train."""
        deadline = time.time() + _START_SECONDS
        while {_site(start["worker"]) for start in self._starts()} != set(range(SITES)):
            if time.time() > deadline or any(worker.poll() is not None for worker in self._workers):
                raise RuntimeError(f"workers did not start, see the logs in {self._folder}")
            time.sleep(0.2)

    def _starts(self) -> list[dict[str, Any]]:
        return _read(self._folder / "starts.jsonl")

    def _kill(self) -> None:
        """Kill a worker, which is a child of torchrun if there is one."""
        with suppress(OSError, ValueError):  # it is not running
            pid = int((self._folder / f"pid.{KILLED}").read_text())
            if str(WORKER) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                self._ended.append(time.time())

    def _start_again(self) -> None:
        """Start all workers again that have ended."""
        for host, worker in enumerate(self._workers):
            if worker.poll() is not None:
                if worker.returncode != -signal.SIGKILL:
                    self._crashes += 1
                    self._ended.append(time.time())
                self._workers[host] = self._start_worker(host)

    def run(self) -> Run:
        """Train."""
        self._start_service()
        self._workers = [self._start_worker(host) for host in range(SITES)]
        self._await_workers()
        (self._folder / "go").touch()
        begin, before = time.time(), self._network.traffic()
        kills = begin + self._args.kill_every
        while time.time() < begin + self._args.seconds:
            time.sleep(0.1)
            if self._disturbed and time.time() >= kills:
                self._kill()
                kills += self._args.kill_every
            self._start_again()
        end, after = time.time(), self._network.traffic()
        return Run(
            begin,
            end,
            [(self._folder / f"steps.{host}").stat().st_size for host in range(SITES)],
            [r for r in _read(self._folder / "rounds.jsonl") if r["time"] < end],
            self._starts(),
            self._losses(),
            self._ended,
            self._crashes,
            float(np.mean([after[h].sent - before[h].sent for h in range(SITES)])),
            float(np.mean([after[h].received - before[h].received for h in range(SITES)])),
            self._store(),
        )

    def _stop(self) -> None:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def _losses(self) -> dict[int, float]:
        """Return the validation loss of each saved model by its round; it stops the workers."""
        self._stop()
        words = [self._args.torch_python, *self._words("evaluate")]
        environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(words, env=environ, check=True, stdout=subprocess.PIPE, text=True)
        return {int(each): loss for each, loss in json.loads(done.stdout).items()}

    def _store(self) -> dict[str, float]:
        """Return the seconds of each operation of the store; the workers must have ended."""
        sizes = [r["bytes"] for r in _read(self._folder / "rounds.jsonl") if "bytes" in r]
        if not sizes:
            return {}
        self._start_program(0, "store", bytes=int(np.median(sizes))).wait()
        return json.loads((self._folder / "store.log").read_text().splitlines()[-1])


def run(args: argparse.Namespace, name: str, disturbed: bool, results: Path) -> Run:
    """Train with one method."""
    folder = results / f"{name}{', disturbed' if disturbed else ''}".replace(", ", "-")
    folder.mkdir(parents=True)
    method = METHODS[name]
    python = args.torchft_python if method.worker == "torchft" else args.torch_python
    timeout = int(args.seconds + 2 * _START_SECONDS)
    with Network(SITES, args.rate) as network, Processes(network, timeout, python) as processes:
        return Training(network, processes, args, method, folder, disturbed).run()


def row(args: argparse.Namespace, name: str, found: Run, calm: Run | None) -> dict[str, str]:
    """Return the table's row of a run; `calm` is the undisturbed run if this one was disturbed."""
    seconds = found.end - found.begin
    alone, counted = seconds / args.pace, found.counted()
    others = [host for host in range(SITES) if host not in (KILLED, SLOW)]
    curve, joins = found.loss_curve(), found.joins()
    cells = {
        "method": name + (", disturbed" if calm else ""),
        "goodput": f"{counted.sum() / SITES / alone:.3f}",
        "of the others": f"{counted[others].mean() / alone:.3f}",
        "of all made": f"{counted.sum() / max(1, sum(found.made)):.3f}",
        "loss": f"{curve[-1, 1]:.3f}" if len(curve) else "",
        "at equal samples": "",
        "kills, crashes": f"{len(found.ended) - found.crashes}, {found.crashes}",
        "joins": "",
        "rounds": str(len({r["round"] for r in found.rounds})),
        "s per round": f"{seconds / max(1, len({r['round'] for r in found.rounds})):.2f}",
        "MB up": f"{found.sent / 1e6 / seconds * 60:.2f}",
        "MB down": f"{found.received / 1e6 / seconds * 60:.2f}",
        "store alone": ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in found.store.items()),
    }
    if joins and METHODS[name].worker != "ddp":  # which restarts all workers together
        counts = [join for join in joins if join is not None]
        cells["joins"] = f"{max(counts, default=0)} ({len(counts)} of {len(joins)})"
    if calm and len(curve):
        steps, losses = calm.loss_curve().T
        cells["at equal samples"] = f"{curve[-1, 1] - np.interp(curve[-1, 0], steps, losses):+.3f}"
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    torch_python = str(HERE.parent / ".venv-torch" / "bin" / "python")
    parser.add_argument("--torch-python", default=torch_python)
    parser.add_argument("--torchft-python", default=torch_python)
    parser.add_argument("--seconds", type=float, default=180, help="of each run")
    parser.add_argument("--rate", type=bits, default=bits("20M"), help="bits per second of a link")
    parser.add_argument("--pace", type=float, default=0.15, help="seconds of a step")
    parser.add_argument("--kill-every", type=float, default=15, help="seconds between two kills")
    parser.add_argument("--every", type=int, default=20, help="torchft's sync_every")
    parser.add_argument(
        "--compression", default='{"compressor": "onebit", "scaling": true, "ef": "vanilla"}'
    )
    parser.add_argument("--grace", type=float, default=2.0, help="of the mailbox, in seconds")
    parser.add_argument(
        "--keep", type=int, default=10, help="rounds between two saved states of the mailbox"
    )
    parser.add_argument("--only", type=re.compile, help="methods to run, of " + ", ".join(METHODS))
    parser.add_argument("--results", type=Path, help="a new folder for all logs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    with tempfile.TemporaryDirectory() as temporary:
        results, first = args.results or Path(temporary), True
        for name in METHODS:
            if args.only and not args.only.search(name):
                continue
            calm = run(args, name, False, results)
            print_row(row(args, name, calm, None), first)
            print_row(row(args, name, run(args, name, True, results), calm), False)
            first = False


if __name__ == "__main__":
    main()

"""Seconds a step to exchange a model's gradients over links of a given rate, for many methods.

Makes a network namespace for each worker and server, with links shaped to the rate, and runs real
processes in them: MXNet's dist_sync, Horovod, and gluon_gc on both. Needs root and iproute2; for
Horovod's rows, Horovod. The limit is the time that the busiest direction of any link takes for the
bytes that were counted on it.

    python benchmark/cluster.py [--rates 100M,1G] [--model resnet18_v2] [--only REGEX] [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from methods import Method, methods
from network import Network

HERE = Path(__file__).resolve().parent
PORT = 9000
WARM_UP = 2
TIMEOUT = 600  # seconds that a method may take
BASELINES = ("MXNet fp32", "Horovod fp16")


class Result(NamedTuple):
    """What one method did in a step, on average; the seconds are the median."""

    method: str
    rate: float
    seconds: float
    worker_bytes: float
    limit: float


def model_shapes(name: str) -> List[Tuple[int, ...]]:
    """The shapes of the gradients of a model of Gluon's zoo, or of a JSON file that lists them."""
    if name.endswith(".json"):
        return [tuple(shape) for shape in json.loads(Path(name).read_text())]
    import mxnet as mx

    net = mx.gluon.model_zoo.vision.get_model(name, classes=100)
    net.infer_shape(mx.nd.zeros((1, 3, 224, 224)))
    return [p.shape for p in net.collect_params().values() if p.grad_req != "null"]


class Processes:
    """The processes of one run, which end with it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._started: List[subprocess.Popen] = []

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

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start_workers(
    method: Method, workers: int, servers: int, network: Network, processes: Processes, spec: dict
) -> List[subprocess.Popen]:
    """Start all that a method needs; returns the workers."""

    def worker(rank: int, **variables: object) -> subprocess.Popen:
        words = [str(HERE / "exchange.py"), json.dumps({**spec, "rank": rank})]
        return processes.start(rank, words, **variables)

    if method.backend == "horovod":
        hosts = ",".join(f"{address}:1" for address in network.addresses[:workers])
        rendezvous = processes.start(-1, [str(HERE / "rendezvous.py"), hosts])
        common = {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": network.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": network.hub,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": int(rendezvous.stdout.readline()),
            "HOROVOD_SIZE": workers,
            "HOROVOD_LOCAL_RANK": 0,
            "HOROVOD_LOCAL_SIZE": 1,
            "HOROVOD_CROSS_SIZE": workers,
        }
        return [
            worker(
                rank,
                **common,
                HOROVOD_HOSTNAME=network.addresses[rank],
                HOROVOD_RANK=rank,
                HOROVOD_CROSS_RANK=rank,
            )
            for rank in range(workers)
        ]
    cluster = {
        "DMLC_PS_ROOT_URI": network.hub,
        "DMLC_PS_ROOT_PORT": PORT,
        "DMLC_NUM_WORKER": workers,
        "DMLC_NUM_SERVER": servers,
    }
    role = ["-c", "import mxnet"] if method.engine == "mxnet" else ["-m", "bpslaunch"]
    for host, name in [(-1, "scheduler"), *((workers + i, "server") for i in range(servers))]:
        processes.start(host, role, **cluster, DMLC_ROLE=name)
    return [
        worker(rank, **cluster, DMLC_ROLE="worker", DMLC_WORKER_ID=rank) for rank in range(workers)
    ]


def _line(process: subprocess.Popen, begin: str) -> str:
    """What follows `begin` on the line that a process prints next with it."""
    for line in process.stdout:
        if line.startswith(begin):
            return line[len(begin) :]
    raise RuntimeError(f"a worker ended before it said {begin!r}")


def run(
    method: Method, shapes: Sequence[Sequence[int]], rate: float, arguments: argparse.Namespace
) -> Result:
    """Time one method on a network of its own."""
    workers, servers, steps = arguments.workers, arguments.servers, arguments.steps
    spec = {
        "engine": method.engine,
        "options": method.options,
        "shapes": shapes,
        "steps": steps,
        "warm_up": WARM_UP,
    }
    with Network(workers + servers, rate) as network:
        processes = Processes(network)
        alarm = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(TIMEOUT)
        try:
            started = start_workers(method, workers, servers, network, processes, spec)
            counts = []
            for word in ("begin", "end"):
                _line(started[0], word)
                counts.append(network.traffic())
                started[0].stdin.write("\n")
                started[0].stdin.flush()
            seconds = [json.loads(_line(worker, "seconds ")) for worker in started]
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, alarm)
            processes.stop()
    before, after = counts
    moved = {host: [(b - a) / steps for a, b in zip(before[host], after[host])] for host in before}
    return Result(
        method.name,
        rate,
        statistics.median(max(step) for step in zip(*seconds)),
        sum(moved[0]),
        8 * max(max(both) for both in moved.values()) / rate,
    )


def _too_long(*_: object) -> None:
    raise TimeoutError(f"it took more than {TIMEOUT} s")


def rows(results: Sequence[Result]) -> Iterator[Dict[str, object]]:
    """The results as the table has them."""
    seconds = {(r.method, r.rate): r.seconds for r in results}
    for r in results:
        row = {
            "method": r.method,
            "Mbit/s": r.rate / 1e6,
            "seconds": round(r.seconds, 4),
            "MB a worker": round(r.worker_bytes / 1e6, 2),
            "of the limit": round(r.seconds / r.limit, 2),
        }
        for baseline in BASELINES:
            slow = seconds.get((baseline, r.rate))
            row[f"x {baseline}"] = round(slow / r.seconds, 1) if slow else ""
        yield row


def _rate(text: str) -> float:
    units = {"K": 1e3, "M": 1e6, "G": 1e9}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18_v2", help="of Gluon's zoo, or a JSON file")
    parser.add_argument("--rates", default="100M,1G", help="of the links, bits a second")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="methods whose name this expression matches")
    parser.add_argument("--csv", help="also write the table here")
    parser.add_argument("--plot", help="also draw it here")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    shapes = model_shapes(arguments.model)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [method for method in methods() if re.search(arguments.only, method.name)]
    results: List[Result] = []
    for rate in map(_rate, arguments.rates.split(",")):
        for method in chosen:
            print(f"{method.name} at {rate / 1e6:g} Mbit/s ...", file=sys.stderr, flush=True)
            try:
                results.append(run(method, shapes, rate, arguments))
            except (RuntimeError, TimeoutError) as error:
                print(f"{method.name}: {error}", file=sys.stderr)
                continue
            *_, row = rows(results)
            if len(results) == 1:
                print("|", " | ".join(row), "|\n" + "|---" * len(row) + "|")
            print("|", " | ".join(str(value) for value in row.values()), "|", flush=True)
    table = list(rows(results))
    if not table:
        sys.exit("nothing was measured")
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows(table)
    if arguments.plot:
        from plot import draw

        draw(table, arguments.plot)


if __name__ == "__main__":
    main()

"""Measures the seconds per step to exchange a model's gradients over links of a given rate.

Makes a network namespace for each worker and server, with links shaped to the rate, and runs real
processes in them: MXNet's dist_sync, Horovod, DistributedDataParallel, and gluon_gc on each. It
needs root and iproute2. Rows of Horovod need Horovod; rows of PyTorch need PyTorch, here or in the
environment of --torch-python. The limit is the time that the busiest direction of any link takes
for the bytes that were counted on it.

    python benchmark/cluster.py [--rates 100M,1G] [--model resnet18_v2] [--only REGEX] [--csv FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import sys
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from methods import Method, methods
from network import Network, bits, rates
from processes import HERE, MXNET_ROLE, ROLE, Processes, read_line
from table import print_row, write_csv

WARM_UP = 3  # PowerSGD starts in the third step
TIMEOUT = 600  # seconds for one method
BASELINES = ("MXNet fp32", "Horovod fp16", "DDP fp32", "DDP fp16")


class Result(NamedTuple):
    """The result of one method: seconds is the median over the steps, the rest is the mean."""

    method: str
    rate: float
    seconds: float
    machine_bytes: float
    limit: float
    processor: float  # seconds of processor time, of all processes


def model_shapes(name: str) -> list[tuple[int, ...]]:
    """Return the gradient shapes of a model of Gluon's zoo, or those that a JSON file lists."""
    if name.endswith(".json"):
        return [tuple(shape) for shape in json.loads(Path(name).read_text())]
    import mxnet as mx

    net = mx.gluon.model_zoo.vision.get_model(name, classes=100)
    net.infer_shape(mx.nd.zeros((1, 3, 224, 224)))
    return [p.shape for p in net.collect_params().values() if p.grad_req != "null"]


def run(
    method: Method, shapes: Sequence[Sequence[int]], rate: float, arguments: argparse.Namespace
) -> Result:
    """Measure one method on its own network."""
    workers, servers, steps = arguments.workers, arguments.servers, arguments.steps
    machines = workers // arguments.per_machine
    hosts = machines if arguments.servers_beside else machines + servers
    spec = {
        "engine": method.engine,
        "options": method.options,
        "shapes": shapes,
        "rounds": 1,
        "steps": steps,
        "warm_up": WARM_UP,
    }

    def words(rank: int) -> list[str]:
        return [str(HERE / "exchange.py"), json.dumps({**spec, "rank": rank})]

    role = MXNET_ROLE if method.engine == "mxnet" else ROLE
    python = arguments.torch_python if method.backend == "torch" else sys.executable
    network = Network(hosts, rate, arguments.inner_rate)
    with network, Processes(network, TIMEOUT, python) as processes:
        started = processes.start_workers(
            method.backend,
            workers,
            servers,
            words,
            role,
            arguments.per_machine,
            arguments.servers_beside,
        )
        counts, processor = [], []
        for word in ("begin", "end"):
            read_line(started[0], word)
            counts.append(network.traffic())
            processor.append(processes.processor_seconds())
            started[0].stdin.write("\n")
            started[0].stdin.flush()
        seconds = [json.loads(read_line(worker, "seconds ")) for worker in started]
    before, after = counts
    moved = {host: [(b - a) / steps for a, b in zip(before[host], after[host])] for host in before}
    return Result(
        method.name,
        rate,
        statistics.median(max(step) for step in zip(*seconds)),
        sum(moved[0]),
        8 * max(max(both) for both in moved.values()) / rate,
        (processor[1] - processor[0]) / steps,
    )


def rows(results: Sequence[Result]) -> Iterator[dict[str, object]]:
    """Yield the table's rows, one for each result."""
    seconds = {(r.method, r.rate): r.seconds for r in results}
    for r in results:
        row = {
            "method": r.method,
            "Mbit/s": r.rate / 1e6,
            "seconds": round(r.seconds, 4),
            "MB per machine": round(r.machine_bytes / 1e6, 2),
            "of the limit": round(r.seconds / r.limit, 2) if r.limit else "",
            "processor s": round(r.processor, 3),
        }
        for baseline in BASELINES:
            slow = seconds.get((baseline, r.rate))
            row[f"x {baseline}"] = round(slow / r.seconds, 1) if slow else ""
        yield row


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18_v2", help="of Gluon's zoo, or a JSON file")
    parser.add_argument(
        "--rates", type=rates, default="100M,1G", help="of the links, bit/s; inf: no limit"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--per-machine", type=int, default=1, help="workers on one machine")
    parser.add_argument(
        "--inner-rate", type=bits, default="inf", help="between workers of one machine, bit/s"
    )
    parser.add_argument(
        "--servers-beside", action="store_true", help="run servers on the workers' machines"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="methods whose name this expression matches")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="the Python that runs PyTorch's methods"
    )
    parser.add_argument("--csv", help="also write the table here")
    parser.add_argument("--plot", help="also draw it here")
    arguments = parser.parse_args()
    if arguments.workers % arguments.per_machine:
        parser.error("--per-machine must divide --workers")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    shapes = model_shapes(arguments.model)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [method for method in methods() if re.search(arguments.only, method.name)]
    results: list[Result] = []
    for rate in arguments.rates:
        for method in chosen:
            print(f"{method.name} at {rate / 1e6:g} Mbit/s ...", file=sys.stderr, flush=True)
            try:
                results.append(run(method, shapes, rate, arguments))
            except (RuntimeError, TimeoutError) as error:
                print(f"{method.name}: {error}", file=sys.stderr)
                continue
            *_, row = rows(results)
            print_row(row, first=len(results) == 1)
    table = list(rows(results))
    if not table:
        sys.exit("there are no results")
    if arguments.csv:
        write_csv(table, arguments.csv)
    if arguments.plot:
        from plot import draw

        draw(table, arguments.plot)


if __name__ == "__main__":
    main()

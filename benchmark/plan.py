"""Compares what `python -m gluon_gc plan` predicts with the seconds of real training steps.

Each worker has its own network namespace, as in cluster.py, and all share this machine's
processors. For each model, rate and number of workers, the workers train a few steps without an
exchange, then with each method. Then plan runs in the same network. It needs root and iproute2, and
PyTorch.

    python benchmark/plan.py [--rates 20M,100M,1G] [--workers 4,2] [--results FOLDER]

The folder has a file for each combination. A combination that is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from network import Network, rates
from processes import HERE, Processes, read_line
from table import print_row
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps
from gluon_gc.auto.prediction import methods

sys.path.insert(0, str(HERE.parent / "example" / "pytorch"))

from resnet import network
from transformer import Transformer

PLAIN, ALONE = "none", "no exchange"
NAMES = (PLAIN, "onebit", "blockwise", "topk", "powersgd 4")
WARM_UP, PLAIN_WARM_UP = 2, 1  # steps
BUDGET, MOST = 2.5, 10  # seconds and steps that a method is timed; at least one step
TIMEOUT = 600  # seconds for one combination
EQUAL = 0.03  # two methods whose measured times differ by less are in either order


def resnet18() -> tuple:
    """Return ResNet-18 for images of 32x32 with SGD, and a batch."""
    model = network("resnet18", 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, torch.randn(32, 3, 32, 32), torch.randint(100, (32,))


def language_model() -> tuple:
    """Return the model of language_model.py with SGD, and a batch."""
    model = Transformer(256, 4, 4, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    text = torch.randint(256, (4, 129))
    return model, optimizer, text[:, :-1], text[:, 1:].flatten()


MODELS = {"resnet18": resnet18, "language_model": language_model}


def trainer(model: str, method: Any) -> Callable[[], None]:
    """Return a function that trains one step; `method` None: as the only worker of its group."""
    torch.manual_seed(0)  # workers begin with equal weights
    net, optimizer, inputs, targets = MODELS[model]()
    forward = net
    if method is None:
        groups = [dist.new_group([rank]) for rank in range(bps.size())]
        forward = DistributedDataParallel(
            net, process_group=groups[bps.rank()], gradient_as_bucket_view=True
        )
    elif method.algorithm is not None:
        optimizer = bps.DistributedOptimizer(
            optimizer, net.named_parameters(), method.params, algorithm=method.algorithm
        )
    else:
        forward = DistributedDataParallel(net, gradient_as_bucket_view=True)
        if method.params:
            state = bps.CompressionState(net.named_parameters(), method.params, optimizer)
            forward.register_comm_hook(state, bps.compression_hook)

    def step() -> None:
        optimizer.zero_grad()
        output = forward(inputs)
        cross_entropy(output.flatten(0, -2), targets).backward()
        optimizer.step()

    return step


def work(model: str) -> None:
    """Run a worker. Worker 0 prints a line "seconds {...}" at the end."""
    torch.set_num_threads(1)
    bps.init()
    known = {method.name: method for method in methods("sgd")}
    chosen: dict[str, Any] = {ALONE: None, **{name: known[name] for name in NAMES}}
    steps = {name: trainer(model, method) for name, method in chosen.items()}
    seconds = timed(steps)
    if bps.rank() == 0:
        print("seconds", json.dumps(seconds), flush=True)
    bps.shutdown()


def timed(steps: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median of each method. The methods take turns, because other load varies.

    A step lasts until the slowest worker has done it.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}

    def once(name: str) -> float:
        dist.barrier()
        start = time.perf_counter()
        steps[name]()
        took = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return took.item()

    for name in steps:
        for _ in range(PLAIN_WARM_UP if name == PLAIN else WARM_UP):
            once(name)
    for _ in range(MOST):
        for name, times in found.items():
            if sum(times) < BUDGET:
                times.append(once(name))
    return {name: statistics.median(times) for name, times in found.items()}


def started(folder: Path, name: str, network: Network, words: list[str], begin: str) -> Any:
    """Run workers; return the JSON in worker 0's line that begins so, or in the folder's file."""
    result = folder / f"{name}.json"
    if not result.exists():
        print(f"{name} ...", file=sys.stderr, flush=True)
        with network, Processes(network, TIMEOUT) as processes:
            hosts = len(network.addresses)
            workers = processes.start_workers("torch", hosts, 0, lambda _: words)
            text = read_line(workers[0], begin)
            for worker in workers:
                worker.communicate()
        result.write_text(text)
    return json.loads(result.read_text())


def measure(model: str, rate: float, workers: int, folder: Path) -> dict[str, Any]:
    """Measure and predict one combination."""
    file = folder / f"{model}.pt"
    if not file.exists():
        torch.save(MODELS[model]()[0].state_dict(), file)
    name = f"{model}-{rate / 1e6:g}M-{workers}"
    words = [__file__, "--work", model]
    seconds = started(folder, f"{name}-measured", Network(workers, rate), words, "seconds ")
    words = ["-m", "gluon_gc", "plan", "--json", "--model", str(file.resolve())]
    words += ["--step-seconds", str(seconds[ALONE])]
    predicted = started(folder, f"{name}-plan", Network(workers, rate), words, "")
    return {"model": model, "rate": rate, "workers": workers, "seconds": seconds, "plan": predicted}


def rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a combination, one for each method."""
    predicted = {row["method"]: row for row in found["plan"]["predictions"]}
    for name in NAMES:
        measured, step = found["seconds"][name], predicted[name]["step"]
        yield {
            "model": found["model"],
            "Mbit/s": f"{found['rate'] / 1e6:g}",
            "workers": found["workers"],
            "method": name,
            "measured s": f"{measured:.3f}",
            "predicted s": f"{step:.3f}",
            "error": f"{100 * (step / measured - 1):+.0f} %",
            "x DDP": f"{found['seconds'][PLAIN] / measured:.2f}",
            "predicted x DDP": f"{predicted[PLAIN]['step'] / step:.2f}",
        }


def is_ordered(found: dict[str, Any]) -> bool:
    """Whether the two methods that should be the fastest are so, in this order."""
    seconds = {name: found["seconds"][name] for name in NAMES}
    steps = {row["method"]: row["step"] for row in found["plan"]["predictions"]}
    first, second = sorted(seconds, key=steps.__getitem__)[:2]
    others = [seconds[name] for name in seconds if name not in (first, second)]
    limits = [seconds[second], *others], others
    return all(
        seconds[name] <= min(slower) * (1 + EQUAL) for name, slower in zip((first, second), limits)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=rates, default="20M,100M,1G", help="of the links, bit/s")
    parser.add_argument("--workers", default="4,2", help="numbers of workers")
    parser.add_argument("--models", default=",".join(MODELS), help="of this benchmark")
    parser.add_argument("--results", type=Path, default="build/plan", help="folder of the results")
    parser.add_argument("--work", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments.work)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.results.mkdir(parents=True, exist_ok=True)
    combinations = [
        measure(model, rate, workers, arguments.results)
        for workers in map(int, arguments.workers.split(","))
        for model in arguments.models.split(",")
        for rate in arguments.rates
    ]
    table = [row for found in combinations for row in rows(found)]
    for number, row in enumerate(table):
        print_row(row, first=number == 0)
    show(combinations, table)


def show(combinations: Sequence[dict[str, Any]], table: Sequence[dict[str, Any]]) -> None:
    """Print the errors of all compressed methods, and how many orders are right."""
    errors = sorted(abs(float(row["error"].split()[0])) for row in table if row["method"] != PLAIN)
    right = sum(map(is_ordered, combinations))
    print(
        f"\nError with compression: median {statistics.median(errors):.0f} %, largest "
        f"{errors[-1]:.0f} %. The first two methods are right in {right} of {len(combinations)}."
    )


if __name__ == "__main__":
    main()

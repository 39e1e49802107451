"""Measures the seconds of an exchange with PyTorch's hook for PowerSGD and with ours.

The workers run in network namespaces with links of a given rate, and exchange ResNet-18's
gradients. All methods take turns in the same processes, so that other load on the machine affects
all. It needs root, iproute2 and PyTorch.

    python benchmark/powersgd.py --rate 20M --rank 4
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from network import Network, bits
from processes import Processes, read_line

WARM_UP = 3  # PyTorch's hook compresses from the third step on
TIMEOUT = 600  # seconds
HALF = {"compression_params": {"fp16": True}}


def resnet18_shapes() -> list[list[int]]:
    """Return the shapes of ResNet-18's parameters, for images of 32x32 and 100 classes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))
    from resnet import network

    return [list(parameter.shape) for parameter in network("resnet18", 100).parameters()]


def engines(rank: int) -> dict[str, Any]:
    """Return the methods."""
    from exchange_torch import DDP, Algorithm

    shapes, algorithm = resnet18_shapes(), {"name": "powersgd", "rank": rank}
    return {
        "PyTorch's hook": DDP(shapes, {"powersgd": rank}),
        "powersgd": Algorithm(shapes, {"algorithm": algorithm}),
        "powersgd, fp16": Algorithm(shapes, {"algorithm": algorithm, **HALF}),
    }


def work(rank: int, steps: int) -> None:
    """Run a worker, which prints a line "seconds {...}" at the end."""
    methods = engines(rank)  # they share a process group
    random = np.random.default_rng(int(os.environ["RANK"]))
    values = [random.standard_normal(shape, np.float32) for shape in resnet18_shapes()]
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(WARM_UP + steps):
        for name, engine in methods.items():
            engine.fill(values)
            engine.barrier()
            start = time.perf_counter()
            engine.exchange()
            seconds[name].append(time.perf_counter() - start)
    print("seconds", json.dumps({name: s[WARM_UP:] for name, s in seconds.items()}), flush=True)
    methods["powersgd"].barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=bits, default="20M", help="of the links, bit/s")
    parser.add_argument("--rank", type=int, default=1, help="of the factors")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments.rank, arguments.steps)
        return
    words = [__file__, "--rank", str(arguments.rank), "--steps", str(arguments.steps)]
    with Network(arguments.workers, arguments.rate) as network:
        with Processes(network, TIMEOUT) as processes:
            workers = processes.start_workers("torch", arguments.workers, 0, lambda _: words)
            seconds = [json.loads(read_line(worker, "seconds ")) for worker in workers]
    print("| method | rank | Mbit/s | seconds | x PyTorch's hook |\n|---|---|---|---|---|")
    slowest = {name: [max(s) for s in zip(*(w[name] for w in seconds))] for name in seconds[0]}
    medians = {name: statistics.median(taken) for name, taken in slowest.items()}
    for name, median in medians.items():
        faster = medians["PyTorch's hook"] / median
        rate = arguments.rate / 1e6
        print(f"| {name} | {arguments.rank} | {rate:g} | {median:.3f} | {faster:.1f} |")


if __name__ == "__main__":
    main()

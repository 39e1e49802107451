"""Measures the seconds per training step of DistributedDataParallel, without and with our hook.

It trains ResNet-18 on 32x32 images with batches of 32 per worker, over loopback without a rate
limit. All settings take turns in one process, so that other load on the machine affects all. The
last setting makes a report in each step. A hundredth of its additional time is that of every=100.

    torchrun --nproc-per-node 2 benchmark/training_torch.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "pytorch"))

from resnet import network

SETTINGS = {
    "DDP fp32": None,
    "onebit": {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"},
    "topk 0.001": {"compressor": "topk", "k": 0.001, "ef": "vanilla", "momentum": "nesterov"},
}
REPORTED = "onebit, report"
SETTINGS[REPORTED] = SETTINGS["onebit"]
WARM_UP = 3


def trainer(name: str) -> Callable[[], None]:
    """Return a function that trains one step of a setting."""
    params = SETTINGS[name]
    model = network("resnet18", 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if params is not None:
        state = bps.CompressionState(model.named_parameters(), params, optimizer)
        ddp.register_comm_hook(state, bps.compression_hook)
        if name == REPORTED:
            bps.report(state, every=1)
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(100, (32,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    bps.init()
    logging.getLogger("gluon_gc.report").setLevel(logging.WARNING)
    steps = {name: trainer(name) for name in SETTINGS}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(WARM_UP + arguments.steps):
        for name, step in steps.items():
            torch.distributed.barrier()
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    if bps.rank() == 0:
        print("| | seconds per step | of DDP's |\n|---|---|---|")
        plain = statistics.median(seconds["DDP fp32"][WARM_UP:])
        for name, taken in seconds.items():
            median = statistics.median(taken[WARM_UP:])
            print(f"| {name} | {median:.4f} | {median / plain:.2f} |")
        pairs = zip(*(seconds[name][WARM_UP:] for name in (REPORTED, "onebit")))
        longer = statistics.median(reported - alone for reported, alone in pairs)
        share = longer / statistics.median(seconds["onebit"][WARM_UP:]) / 100
        print(f"\na report every 100 steps takes {share:.2%} of a step")
    bps.shutdown()


if __name__ == "__main__":
    main()

"""Measures the processor time per tensor for many tensors of one small size, compressed or not.

One process uses the backend `local`, which does a worker's and a server's work. So its time is the
whole cost of compression, and pushed_bytes shows the whole saving.

    python benchmark/tiny.py [--tensors N] [--steps N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import mxnet as mx
from methods import COMPRESSIONS
from table import print_row

import gluon_gc as bps

SIZES = (1, 4, 16, 32, 64, 128, 256, 1024)
METHODS = ("fp32", "onebit", "topk 0.001", "dithering 2")
WARM_UP = 3


def measure(params: dict[str, Any], size: int, tensors: int, steps: int) -> tuple[float, float]:
    """Return the microseconds and the pushed bytes per tensor of `size` elements."""
    gradients = [mx.gluon.Parameter(f"p{i}", shape=(size,)) for i in range(tensors)]
    for parameter in gradients:
        parameter.initialize(mx.init.Zero())
        parameter.grad()[:] = 1
    optimizer = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = bps.DistributedTrainer(gradients, "sgd", optimizer, compression_params=params)
    seconds = []
    for _ in range(WARM_UP + steps):
        mx.nd.waitall()
        start = time.process_time()
        trainer.allreduce_grads()
        trainer.applied()  # or the next step would take this one back
        mx.nd.waitall()
        seconds.append(time.process_time() - start)
    pushed = trainer.compression_stats()["total"]["pushed_bytes"]
    return 1e6 * statistics.median(seconds[WARM_UP:]) / tensors, pushed / tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=15, help="timed steps (default 15)")
    options = parser.parse_args()
    bps.init()
    for size in SIZES:
        row = {"elements": str(size)}
        for name in METHODS:
            took, pushed = measure(COMPRESSIONS[name], size, options.tensors, options.steps)
            row[name] = f"{took:.1f} us, {pushed:.0f} B"
        print_row(row, first=size == SIZES[0])


if __name__ == "__main__":
    main()

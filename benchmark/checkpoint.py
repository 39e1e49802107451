"""Measures the seconds to save and load a trainer's state, compared with a plain write to disk.

The script starts workers and servers on this machine. They train one step with onebit, error
feedback and momentum. Then they repeat three things: save the state, load it, and write the same
number of bytes from memory with fsync. The time of a round is that of the slowest worker. The
result is the median of all rounds but the first: there, a virtual machine may still have to get
memory from its host.

    python benchmark/checkpoint.py [--parameters 138e6] [--workers 2] [--servers 2] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 411e6 / 553e6  # the share of VGG-16's parameters that are in its largest layer
COMPRESSION = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=float, default=138e6, help="default: VGG-16's")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--times", type=int, default=5, help="timed rounds")
    parser.add_argument("--folder", help="where to write; default: the temporary folder")
    return parser.parse_args()


def _start(args: argparse.Namespace) -> None:
    """Start a cluster whose workers run this file."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        launch = ["--local", "-n", str(args.workers), "-s", str(args.servers)]
        own = [sys.executable, __file__, "--parameters", str(args.parameters)]
        own += ["--times", str(args.times), "--folder", folder]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "bpslaunch.py"), *launch, *own]
        subprocess.run(command, env=environment, check=True)


def _work(args: argparse.Namespace) -> None:
    """Train one step, then measure; worker 0 prints the result."""
    import mxnet as mx
    import numpy as np

    import gluon_gc as bps

    bps.init()
    large = int(args.parameters * LARGEST)
    params = []
    for i, size in enumerate([large, *[int((args.parameters - large) / 10)] * 10]):
        params.append(mx.gluon.Parameter(f"p{i}", shape=(size,)))
        params[-1].initialize(mx.init.Zero())
    optimizer = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = bps.DistributedTrainer(params, "sgd", optimizer, compression_params=COMPRESSION)
    for param in params:
        param.grad()[:] = mx.nd.random.normal(shape=param.shape)
    trainer.allreduce_grads()
    mx.nd.waitall()
    file = Path(args.folder, f"states-{bps.rank()}")
    seconds: dict[str, list[float]] = {"write": [], "save": [], "load": []}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        bps.barrier()
        start = time.perf_counter()
        yield
        mx.nd.waitall()
        took = np.zeros(bps.size())
        took[bps.rank()] = time.perf_counter() - start
        seconds[name].append(bps.allreduce(took, average=False).max())

    block = np.random.default_rng(0).integers(0, 255, 2**24, np.uint8)
    for _ in range(1 + args.times):
        with timed("save"):
            trainer.save_states(str(file))
        with timed("load"):
            trainer.load_states(str(file))
        size = file.stat().st_size
        file.unlink()
        with timed("write"), open(file, "wb") as raw:
            for left in range(size, 0, -block.size):
                raw.write(block[:left])
            raw.flush()
            os.fsync(raw.fileno())
        file.unlink()
    total = bps.allreduce(float(size), average=False)
    if bps.rank() == 0:
        medians = {name: statistics.median(took[1:]) for name, took in seconds.items()}
        each = ", ".join(
            f"{name} {s:.2f} s ({total / s / 1e6:.0f} MB/s, {s / medians['write']:.1f} of writing)"
            for name, s in medians.items()
        )
        print(f"{args.parameters:.0f} parameters, {total / 1e6:.0f} MB: {each}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    given = _arguments()
    _work(given) if "BYTEPS_LOCAL_RANK" in os.environ else _start(given)

"""Measures the Python time to queue a step's exchange, compared with calls of a small operator.

One Python thread queues the exchange and so feeds the network. On a fast network, its time is the
cost of compression. The script runs one worker and one server on this machine. It measures the
small operator between the steps, and prints medians and the number of small calls per tensor.

    python benchmark/queueing.py [--model resnet50_v2] [--steps N]

(The name is not queue.py, because that would hide Python's module queue from its neighbours.)
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

from table import print_row

METHODS = ("fp32", "fp16", "onebit", "topk 0.001", "dithering 2")
WARM_UP = 3
CALLS = 100  # of the small operator, after each step, because the processor's clock rate varies


def seconds_of(call: Callable[[], Any]) -> float:
    """Return this thread's processor time in a call, without the work that the call queues."""
    import mxnet as mx

    mx.nd.waitall()
    start = time.thread_time()
    call()
    return time.thread_time() - start


def medians(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Return the seconds of Python per step and per operator on one element."""
    import mxnet as mx

    x, y = mx.nd.zeros(1), mx.nd.zeros(1)

    def small_calls() -> None:
        for _ in range(CALLS):
            mx.nd.op.relu(x, out=y)

    times, units = zip(*((seconds_of(step), seconds_of(small_calls)) for _ in range(steps)))
    return statistics.median(times), statistics.median(units) / CALLS


def worker(options: argparse.Namespace) -> None:
    """Print a row for each method."""
    from cluster import model_shapes
    from exchange_mxnet import GluonGC
    from methods import COMPRESSIONS

    shapes = model_shapes(options.model)
    for name in METHODS:
        engine = GluonGC(shapes, {"compression_params": COMPRESSIONS[name]})
        for _ in range(WARM_UP):
            engine.step()
        seconds, unit = medians(engine.step, options.steps)
        row = {"method": name, "ms": f"{1e3 * seconds:.1f}"}
        row["small call, us"] = f"{1e6 * unit:.1f}"
        row["calls per tensor"] = f"{seconds / unit / len(shapes):.1f}"
        print_row(row, first=name == METHODS[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet50_v2", help="of Gluon's zoo")
    parser.add_argument("--steps", type=int, default=30, help="timed steps (default 30)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "1", "-s", "1"]
    again = [sys.executable, __file__, "--worker", "--model", options.model]
    sys.exit(subprocess.run([*launch, *again, "--steps", str(options.steps)]).returncode)


if __name__ == "__main__":
    main()

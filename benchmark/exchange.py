"""A worker of cluster.py and compare_trees.py: exchanges gradients of given shapes, with times.

    exchange.py JSON

The argument is a JSON object with the keys engine, options, shapes, rank, rounds, steps and
warm_up. Worker 0 prints "begin" before the steps of each round and "end" after them. Each time it
waits for a line on standard input. All workers finally print a line "seconds [...]", with the time
of each step.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np

ENGINES = {
    "mxnet": "exchange_mxnet.MXNetServer",
    "horovod": "exchange_mxnet.Horovod",
    "gluon_gc": "exchange_mxnet.GluonGC",
    "gluon_gc queueing": "exchange_mxnet.Queueing",
    "ddp": "exchange_torch.DDP",
    "gluon_gc.torch": "exchange_torch.GluonGC",
    "gluon_gc.torch dropped": "exchange_torch.Dropped",
    "gluon_gc.torch algorithm": "exchange_torch.Algorithm",
    "hsdp": "exchange_torch.HSDP",
}
"""The class for each engine, as a name: a worker imports only the framework that it uses."""
CLOCKS = {"gluon_gc queueing": time.thread_time}
"""The clock that times an engine's exchange, if it is not the wall clock."""


def _engine(spec: Any) -> Any:
    module, _, name = ENGINES[spec["engine"]].partition(".")
    return getattr(import_module(module), name)(spec["shapes"], spec["options"])


def _tell(word: str) -> None:
    """Print a word and wait for the parent process to answer."""
    print(word, flush=True)
    sys.stdin.readline()


def main() -> None:
    spec = json.loads(sys.argv[1])
    engine = _engine(spec)
    random = np.random.default_rng(spec["rank"])
    values = [random.standard_normal(shape, np.float32) for shape in spec["shapes"]]
    clock = CLOCKS.get(spec["engine"], time.perf_counter)

    def step() -> float:
        engine.fill(values)
        engine.barrier()
        start = clock()
        engine.exchange()
        seconds = clock() - start
        engine.end_step()
        return seconds

    for _ in range(spec["warm_up"]):
        step()
    seconds: list[float] = []
    for _ in range(spec["rounds"]):
        engine.barrier()
        if spec["rank"] == 0:
            _tell("begin")
        seconds += [step() for _ in range(spec["steps"])]
        engine.barrier()
        if spec["rank"] == 0:
            _tell("end")
    print("seconds", json.dumps(seconds), flush=True)
    engine.barrier()


if __name__ == "__main__":
    main()

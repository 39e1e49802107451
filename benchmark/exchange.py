"""A worker of benchmark/cluster.py: exchanges gradients of given shapes and times each step.

    exchange.py JSON

The argument is a JSON object with the keys engine, options, shapes, rank, steps and warm_up.
Worker 0 prints "begin" before the timed steps and "end" after them. Each time it waits for a line
on standard input. All workers finally print a line "seconds [...]".
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
    "ddp": "exchange_torch.DDP",
    "gluon_gc.torch": "exchange_torch.GluonGC",
    "gluon_gc.torch algorithm": "exchange_torch.Algorithm",
}
"""The class for each engine, as a name: a worker imports only the framework that it uses."""


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
    seconds = []
    for step in range(spec["warm_up"] + spec["steps"]):
        engine.fill(values)
        engine.barrier()
        if step == spec["warm_up"] and spec["rank"] == 0:
            _tell("begin")
        engine.barrier()
        start = time.perf_counter()
        engine.exchange()
        seconds.append(time.perf_counter() - start)
        engine.end_step()
    engine.barrier()
    if spec["rank"] == 0:
        _tell("end")
    print("seconds", json.dumps(seconds[spec["warm_up"] :]), flush=True)
    engine.barrier()


if __name__ == "__main__":
    main()

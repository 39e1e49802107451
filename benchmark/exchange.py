"""One worker of benchmark/cluster.py: exchanges gradients of given shapes, and times every step.

    exchange.py JSON

The argument is an object: engine, options, shapes, rank, steps, warm_up. Worker 0 prints "begin"
and "end" around the timed steps and waits for a line on standard input each time; all workers end
with a line "seconds [...]".
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

Shapes = Sequence[Tuple[int, ...]]


class MXNetServer:
    """MXNet's own dist_sync KVStore, with what it has for compression."""

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        self._kv = mx.kv.create("dist_sync")
        self._compressed = "2bit" in options
        if self._compressed:
            self._kv.set_gradient_compression({"type": "2bit", "threshold": options["2bit"]})
        self._dtype = options.get("dtype", "float32")
        self.gradients = [mx.nd.zeros(shape) for shape in shapes]
        for key, shape in enumerate(shapes):
            self._kv.init(key, mx.nd.zeros(shape, dtype=self._dtype))

    def step(self) -> None:
        for key, gradient in enumerate(self.gradients):
            array = gradient.astype(self._dtype, copy=False)
            if self._compressed:  # by MXNet, which pushpull does not do
                self._kv.push(key, array, priority=-key)
                self._kv.pull(key, out=array, priority=-key)
            else:
                self._kv.pushpull(key, array, out=array, priority=-key)
            if array is not gradient:
                array.astype("float32").copyto(gradient)

    def end_step(self) -> None:
        """Nothing is left to do."""

    def barrier(self) -> None:
        self._kv._barrier()


class Horovod:
    """Horovod's allreduce of every gradient, which it fuses."""

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        import horovod.mxnet as hvd

        hvd.init()
        self._hvd = hvd
        self._compression = hvd.Compression.fp16 if options.get("fp16") else hvd.Compression.none
        self.gradients = [mx.nd.zeros(shape) for shape in shapes]

    def step(self) -> None:
        for i, gradient in enumerate(self.gradients):
            array, context = self._compression.compress(gradient)
            self._hvd.allreduce_(array, average=True, name=f"gradient{i}", priority=-i)
            array = self._compression.decompress(array, context)
            if array is not gradient:
                array.copyto(gradient)

    def end_step(self) -> None:
        """Nothing is left to do."""

    def barrier(self) -> None:
        self._hvd.allreduce(mx.nd.zeros(1), name="barrier").wait_to_read()


class GluonGC:
    """DistributedTrainer, on whatever backend the environment says."""

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        import gluon_gc as bps

        bps.init()
        self._bps = bps
        params = []
        for i, shape in enumerate(shapes):
            params.append(mx.gluon.Parameter(f"p{i}", shape=tuple(shape)))
            params[-1].initialize(mx.init.Zero())
        self.gradients = [param.grad() for param in params]
        self._trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": 0.1, "momentum": 0.9},
            compression_params=options["compression_params"],
        )

    def step(self) -> None:
        self._trainer.allreduce_grads()

    def end_step(self) -> None:
        """BYTEPS_TRACE_ON counts steps by updates of the parameters."""
        if os.environ.get("BYTEPS_TRACE_ON"):
            self._trainer.update(1, ignore_stale_grad=True)  # no backward made them

    def barrier(self) -> None:
        flag = mx.nd.zeros(1)
        self._bps.byteps_push_pull(flag, name="barrier")
        flag.wait_to_read()


ENGINES: Dict[str, Callable[..., Any]] = {
    "mxnet": MXNetServer,
    "horovod": Horovod,
    "gluon_gc": GluonGC,
}


def _tell(word: str) -> None:
    """Say how far all workers are, and wait until that is noted."""
    print(word, flush=True)
    sys.stdin.readline()


def main() -> None:
    spec = json.loads(sys.argv[1])
    engine = ENGINES[spec["engine"]](spec["shapes"], spec["options"])
    random = np.random.default_rng(spec["rank"])
    values = [random.standard_normal(shape, np.float32) for shape in spec["shapes"]]
    seconds = []
    for step in range(spec["warm_up"] + spec["steps"]):
        for gradient, array in zip(engine.gradients, values):
            gradient[:] = array
        mx.nd.waitall()
        engine.barrier()
        if step == spec["warm_up"] and spec["rank"] == 0:
            _tell("begin")
        engine.barrier()
        start = time.perf_counter()
        engine.step()
        mx.nd.waitall()
        seconds.append(time.perf_counter() - start)
        engine.end_step()
    engine.barrier()
    if spec["rank"] == 0:
        _tell("end")
    print("seconds", json.dumps(seconds[spec["warm_up"] :]), flush=True)
    engine.barrier()


if __name__ == "__main__":
    main()

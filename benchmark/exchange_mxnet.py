"""The engines of benchmark/cluster.py on MXNet: its parameter server, Horovod, and gluon_gc."""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

Shapes = Sequence[Tuple[int, ...]]


class Engine:
    """Exchanges the arrays in `gradients`, which a subclass creates."""

    gradients: list[mx.nd.NDArray]

    def fill(self, values: Sequence[np.ndarray]) -> None:
        """Set the gradients of the next step."""
        for gradient, array in zip(self.gradients, values):
            gradient[:] = array
        mx.nd.waitall()

    def exchange(self) -> None:
        """Replace the gradients by their sums or averages, and wait until all have arrived."""
        self.step()
        mx.nd.waitall()

    def step(self) -> None:
        """Queue the exchange without waiting."""
        raise NotImplementedError

    def end_step(self) -> None:
        """Finish the step, after the timed part."""

    def barrier(self) -> None:
        """Wait for all workers."""
        raise NotImplementedError


class MXNetServer(Engine):
    """MXNet's dist_sync KVStore, with float16 or 2-bit compression if asked for."""

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
            if self._compressed:  # pushpull ignores MXNet's compression
                self._kv.push(key, array, priority=-key)
                self._kv.pull(key, out=array, priority=-key)
            else:
                self._kv.pushpull(key, array, out=array, priority=-key)
            if array is not gradient:
                array.astype("float32").copyto(gradient)

    def barrier(self) -> None:
        self._kv._barrier()


class Horovod(Engine):
    """Horovod's all-reduce of each gradient; Horovod fuses small ones."""

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

    def barrier(self) -> None:
        self._hvd.allreduce(mx.nd.zeros(1), name="barrier").wait_to_read()


class GluonGC(Engine):
    """gluon_gc's DistributedTrainer, on the backend that the environment selects."""

    def __init__(self, shapes: Shapes, options: Mapping[str, Any]) -> None:
        import gluon_gc as bps

        bps.init()
        self._bps = bps
        params = []
        for i, shape in enumerate(shapes):
            params.append(mx.gluon.Parameter(f"p{i}", shape=tuple(shape)))
            params[-1].initialize(mx.init.Zero())
        self._params = params
        self.gradients = [param.grad() for param in params]
        self._trainer = bps.DistributedTrainer(
            params,
            "sgd",
            {"learning_rate": 0.1, "momentum": 0.9},
            compression_params=options["compression_params"],
        )
        # Without this call, the next step would take an exchange back. Older trees lack it.
        self._applied = getattr(self._trainer, "applied", lambda: None)
        self._traces = bool(os.environ.get("BYTEPS_TRACE_ON"))

    def step(self) -> None:
        for param in self._params:
            param.data()._fresh_grad = True  # normally backward sets this
        self._trainer.allreduce_grads()
        if not self._traces:
            self._applied()

    def end_step(self) -> None:
        """Update the parameters if a trace is on, because the trace counts steps by updates."""
        if self._traces:
            self._trainer.update(1)

    def barrier(self) -> None:
        flag = mx.nd.zeros(1)
        self._bps.byteps_push_pull(flag, name="barrier")
        flag.wait_to_read()


class Queueing(GluonGC):
    """The same trainer. Only the Python that queues the exchange is timed."""

    def exchange(self) -> None:
        """Queue the exchange without waiting."""
        self.step()

    def end_step(self) -> None:
        """Wait until the queued exchange is over."""
        mx.nd.waitall()

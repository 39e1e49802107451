"""A worker of a run with a mailbox, which records what it does. `workers` starts it."""

from __future__ import annotations

import atexit
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import gluon_gc.mxnet as bps
from tests.neutral.mailbox import recording
from tests.neutral.mailbox.recording import Recorder

INPUTS, OUTPUTS = 12, 5


def network(contexts: int = 1, seed: int = 0, outputs: int = OUTPUTS) -> gluon.HybridBlock:
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(16, in_units=INPUTS), gluon.nn.Dense(outputs, in_units=16))
    net.initialize(mx.init.Normal(0.1), ctx=[mx.cpu(i) for i in range(contexts)])
    return net


def trainer_of(net: gluon.HybridBlock, config: dict[str, Any]) -> bps.DistributedTrainer:
    return bps.DistributedTrainer(
        net.collect_params(),
        config.get("optimizer", "sgd"),
        {"learning_rate": config.get("lr", 0.05)},
        compression_params=config.get("compression_params"),
        algorithm=config["algorithm"],
        on_nonfinite=config.get("on_nonfinite", "raise"),
    )


class Batches:
    """Made data: each worker has its own seed, and all workers one function to learn."""

    def __init__(self, seed: int, contexts: int = 1) -> None:
        self._random = np.random.RandomState(seed)
        self._weight = np.random.RandomState(99).standard_normal((INPUTS, OUTPUTS))
        self._contexts = [mx.cpu(i) for i in range(contexts)]

    def backward(self, net: gluon.HybridBlock, batch_size: int, scale: float = 1.0) -> float:
        """Compute the gradients of a batch, times a factor. Return its loss."""
        x = self._random.standard_normal((batch_size, INPUTS))
        inputs, targets = (
            gluon.utils.split_and_load(mx.nd.array(array), self._contexts, even_split=False)
            for array in (x, x @ self._weight)
        )
        with autograd.record():
            losses = [scale * (net(x) - y).abs().sum() for x, y in zip(inputs, targets)]
        autograd.backward(losses)
        return sum(loss.asscalar() for loss in losses) / batch_size


def values_of(net: gluon.HybridBlock) -> dict[str, np.ndarray]:
    """Copies of the parameters, on their first context."""
    return {name: p.list_data()[0].asnumpy() for name, p in net.collect_params().items()}


def has_equal_copies(net: gluon.HybridBlock) -> bool:
    """Whether all contexts have the same parameters."""
    copies = [[c.asnumpy() for c in p.list_data()] for p in net.collect_params().values()]
    return all((other == first).all() for first, *others in copies for other in others)


def work(config: dict[str, Any]) -> None:
    """Train until the file "stop" exists, or for the config's "steps"."""
    folder, name = Path(config["folder"]), config["name"]
    contexts, batch_size = config.get("contexts", 1), config.get("batch_size", 4)
    recording.prepare(config)
    recorders: list[Recorder] = []
    atexit.register(lambda: [recorder.finish() for recorder in recorders])  # after it has left
    bps.init(mailbox=config["url"], worker_name=name, **config.get("settings", {}))
    net = network(contexts, config.get("seed", 0))
    if config.get("hybridizes"):
        net.hybridize()
    trainer = trainer_of(net, config)
    recorder = Recorder(folder, name, trainer._averaging._driver, lambda: values_of(net))
    recorders.append(recorder)
    apply = trainer._apply

    def recorded(*arguments: Any) -> None:
        recorder.before_update()
        apply(*arguments)
        recorder.after_update()

    trainer._apply = recorded
    batches = Batches(int(re.sub(r"\D", "", name)), contexts)
    equal = True
    try:
        for _ in range(config.get("steps", 10**9)):
            if (folder / "stop").exists():
                break
            scale = float("nan") if (folder / f"{name}.nan").exists() else 1.0
            bps.report_loss(batches.backward(net, batch_size, scale))
            trainer.step(batch_size)
            equal = equal and (contexts == 1 or has_equal_copies(net))
            recorder.note_step()
            recorder.note_rounds()
            time.sleep(config.get("sleep", 0.002))
        recorder.facts.update(size=bps.size(), rounds=bps.rounds())
        if config.get("end") == "exit":
            sys.exit(3)
        if config.get("end") == "raise":
            raise ValueError("the worker's own error")
    finally:
        if config.get("end") != "exit":
            bps.shutdown()
        recorder.facts.update(equal_copies=equal and has_equal_copies(net))


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))

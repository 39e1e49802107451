"""A worker of identity.py: trains with each setting on known gradients and saves the weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np

import gluon_gc

SHAPES = {"p0": (50, 20), "p1": (33,), "p2": (257, 3)}
STEPS, RATE, MOMENTUM = 10, 0.125, 0.9
Weights = Dict[str, np.ndarray]


def rate_of(step: int) -> float:
    """Return the learning rate; it changes, so that residuals are rescaled."""
    return RATE / (1 + step // 4)


def gradient(rank: int, step: int, index: int, weight: np.ndarray) -> np.ndarray:
    """Return a gradient that depends on the weight, so that a difference does not vanish."""
    random = np.random.RandomState(100 * step + 10 * rank + index)
    return (random.standard_normal(weight.shape) + weight / 64).astype(np.float32)


def train_mxnet(params: dict[str, Any], way: str) -> Weights:
    """Return the weights after all steps with a Gluon trainer."""
    import mxnet as mx

    import gluon_gc as bps

    weights = [mx.gluon.Parameter(name, shape=shape) for name, shape in SHAPES.items()]
    for weight in weights:
        weight.initialize(mx.init.One())
    momentum = {"momentum": MOMENTUM} if "momentum" in params else {}
    optimizer = {"learning_rate": RATE, **momentum}
    engine = {"kvstore": "local"} if way == "local" else {}
    trainer = bps.DistributedTrainer(weights, "sgd", optimizer, compression_params=params, **engine)
    for step in range(STEPS):
        trainer.set_learning_rate(rate_of(step))
        for i, weight in enumerate(weights):
            given = gradient(bps.rank(), step, i, weight.data().asnumpy())
            with mx.autograd.record():
                loss = (weight.data() * mx.nd.array(given)).sum()
            loss.backward()
        trainer.step(1)
    return {weight.name: weight.data().asnumpy() for weight in weights}


def train_torch(params: dict[str, Any], way: str) -> Weights:
    """Return the weights after all steps with a PyTorch optimizer."""
    import torch

    import gluon_gc.torch as bps

    weights = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in SHAPES.items()}
    momentum = MOMENTUM if "momentum" in params else 0.0
    inner = torch.optim.SGD(weights.values(), RATE, momentum, nesterov=momentum > 0)
    optimizer = bps.DistributedOptimizer(inner, weights.items(), params)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        for i, weight in enumerate(weights.values()):
            given = gradient(bps.rank(), step, i, weight.detach().numpy())
            (weight * torch.from_numpy(given)).sum().backward()
        optimizer.step()
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def main() -> None:
    """Train with every setting in FOLDER/settings.json and write FOLDER/RANK.npz."""
    way, folder = sys.argv[1], Path(sys.argv[2])
    if Path(gluon_gc.__file__).parents[1] != Path.cwd():
        sys.exit(f"gluon_gc was imported from {gluon_gc.__file__}, but must be in {Path.cwd()}")
    if way == "torch":
        import gluon_gc.torch as bps

        train = train_torch
    else:
        import gluon_gc as bps

        train = train_mxnet
    bps.init()
    settings = json.loads((folder / "settings.json").read_text())
    weights = {
        f"{setting}/{name}": array
        for setting, params in settings.items()
        for name, array in train(params, way).items()
    }
    np.savez(folder / f"{bps.rank()}.npz", **weights)
    bps.shutdown()


if __name__ == "__main__":
    main()

"""A worker that averages known gradients, like `steps` of tests/mxnet/exchange/test_two_way.py.

    torchrun ... replayed.py ARGUMENTS.json FOLDER

Writes FOLDER/RANK.npz, in which each result has the name of its arguments before its own.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import gluon_gc.torch as bps


def gradients_of(rank, step, shapes, dtype):
    """Return the gradients of `jobs.gradients_of`; that module cannot be imported without MXNet."""
    random = np.random.RandomState(1000 * rank + step)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def steps(arguments):
    """Return the average of each gradient after each step."""
    shapes, dtype = arguments["shapes"], arguments.get("dtype", "float32")
    parameters = {
        f"p{i}": torch.nn.Parameter(torch.full(shape, i + 1.0, dtype=getattr(torch, dtype)))
        for i, shape in enumerate(shapes)
    }
    options = arguments["optimizer_params"]
    optimizer = torch.optim.SGD(
        parameters.values(), options["learning_rate"], options.get("momentum", 0.0)
    )
    compression_params = arguments["compression_params"]
    state = bps.CompressionState(parameters.items(), compression_params, optimizer)
    result = {}
    for step in range(arguments["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = arguments["learning_rates"][step]
        gradients = gradients_of(bps.rank(), step, shapes, dtype)
        flat = {
            name: torch.from_numpy(gradient).div(arguments["batch_size"]).view(-1)
            for name, gradient in zip(parameters, gradients)
        }
        state.average(flat).wait()
        result.update((f"g{name[1:]}_{step}", tensor.numpy()) for name, tensor in flat.items())
        for name, parameter in parameters.items():
            parameter.grad = flat[name].view_as(parameter)
        optimizer.step()
    for name, parameter in parameters.items():
        result[f"w{name[1:]}"] = parameter.detach().numpy()
    result["row"] = bps.rank()
    state.close()
    return result


def main():
    bps.init()
    ways = json.loads(Path(sys.argv[1]).read_text())
    results = {
        f"{way}/{name}": array
        for way, arguments in ways.items()
        for name, array in steps(arguments).items()
    }
    np.savez(Path(sys.argv[2], f"{bps.rank()}.npz"), **results)
    bps.shutdown()


if __name__ == "__main__":
    main()

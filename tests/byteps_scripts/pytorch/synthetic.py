"""Functions that the scripts share: random images, small networks, arguments; no gluon_gc."""

import argparse
import timeit
from types import ModuleType
from typing import Any, Callable, Mapping

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, TensorDataset

CLASSES = 4


def arguments(defaults: Mapping[str, Any], *positional: str) -> argparse.Namespace:
    """Parse a command line: an argument has its default's type, and False makes it a switch."""
    parser = argparse.ArgumentParser()
    for name in positional:
        parser.add_argument(name)
    for name, default in defaults.items():
        kwargs = {"action": "store_true"} if default is False else {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, **kwargs)
    return parser.parse_args()


def benchmark_arguments(switch: str = "fp16-pushpull") -> argparse.Namespace:
    """Parse the command line of the benchmarks."""
    numbers = {"batch-size": 32, "num-warmup-batches": 10, "num-batches-per-iter": 10}
    numbers.update({"num-iters": 10, "num-classes": CLASSES, "partition": 0})
    return arguments(
        {switch: False, "model": "net", "no-cuda": False, "profiler": False, **numbers}
    )


def net() -> torch.nn.Module:
    """Return a network with a convolution and batch normalization."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, CLASSES),
    )


def images(seed: int, count: int = 90) -> Dataset:
    """Return images whose classes are easy to distinguish."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    data = torch.randn(count, 1, 8, 8, generator=generator)
    for i, label in enumerate(labels.tolist()):
        data[i, 0, 2 * label : 2 * label + 2] += 2.0
    return TensorDataset(data, labels)


def benchmark(
    bps: ModuleType,
    args: argparse.Namespace,
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Time steps with random data, as the published benchmarks do."""
    data = torch.rand(args.batch_size, 1, 8, 8)
    target = torch.randint(args.num_classes, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()

    timeit.timeit(step, number=args.num_warmup_batches)
    seconds = [timeit.timeit(step, number=args.num_batches_per_iter) for _ in range(args.num_iters)]
    log(bps, "%.1f images a second", args.batch_size * args.num_batches_per_iter / min(seconds))


def log(bps: ModuleType, line: str, *values: Any) -> None:
    """Print a line, on the first worker of each machine."""
    if bps.local_rank() == 0:
        print(line % values, flush=True)

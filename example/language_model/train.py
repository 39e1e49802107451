"""Train a byte-level LSTM on the source of Python's standard library, on one worker or a cluster.

Worker 0 writes a record to the log after every --eval-every steps.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import List

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from tqdm import tqdm

import gluon_gc as bps
from gluon_gc import algorithms
from gluon_gc.algorithms.local_steps import LocalSteps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.algorithm_arguments import add_algorithm_arguments, algorithm_of
from common.arguments import (
    HelpFormatter,
    add_compression_arguments,
    add_log_arguments,
    compression_params,
)
from common.checksum import parameter_checksum
from common.log import EpochLog
from common.progress import progress_bar, say, traffic_postfix
from common.source_text import (
    Text,
    load_text,
    require_same_text,
    training_windows,
    validation_windows,
)

BYTES = 256
REPORTED = 10  # steps between updates of the numbers on the progress bar
_softmax_loss = gluon.loss.SoftmaxCrossEntropyLoss()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    group = parser.add_argument_group("training")
    group.add_argument("--width", type=int, default=128, help="size of the LSTM's layers")
    group.add_argument("--depth", type=int, default=1, help="number of the LSTM's layers")
    group.add_argument("--context", type=int, default=64, help="bytes that the model reads")
    group.add_argument("--steps", type=int, default=500, help="number of steps")
    group.add_argument("--batch-size", type=int, default=16, help="windows per step and worker")
    group.add_argument("--lr", type=float, default=5e-3, help="learning rate of Adam")
    group.add_argument("--seed", type=int, default=0, help="seed of weights and data order")
    group.add_argument("--eval-every", type=int, default=100, help="steps between evaluations")
    group.add_argument(
        "--eval-windows", type=int, default=256, help="validation windows of all workers together"
    )
    add_log_arguments(group, "evaluation")
    add_algorithm_arguments(parser)
    add_compression_arguments(parser, clip=False)
    return parser.parse_args()


class LanguageModel(gluon.HybridBlock):
    """Maps bytes (n, length) to the logits (n, length, 256) of each next byte."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        with self.name_scope():
            self.byte = gluon.nn.Embedding(BYTES, width)
            self.lstm = gluon.rnn.LSTM(width, depth, layout="NTC", input_size=width)
            self.head = gluon.nn.Dense(BYTES, flatten=False, in_units=width)

    def hybrid_forward(self, F, data):
        return self.head(self.lstm(self.byte(data)))


def loss_of(net: gluon.Block, windows: np.ndarray) -> mx.nd.NDArray:
    """Return the mean loss of each window in nats per byte, shape (n,)."""
    data = mx.nd.array(windows, dtype="float32")
    return _softmax_loss(net(data[:, :-1]), data[:, 1:])


def validation_loss(net: gluon.Block, windows: np.ndarray) -> float:
    """Return the loss in nats per byte, on the windows of all workers."""
    own = np.array([float(loss_of(net, windows).sum().asscalar()), len(windows)])
    nats, count = bps.allreduce(own, average=False).tolist()
    return nats / count


def train_steps(
    net: gluon.Block,
    trainer: gluon.Trainer,
    text: Text,
    args: argparse.Namespace,
    steps: range,
    bar: tqdm,
) -> List[float]:
    """Train; return the loss of each step."""
    losses = []
    for step in steps:
        order = [args.seed, step, bps.rank()]
        windows = training_windows(text, args.batch_size, args.context, order)
        with autograd.record():
            loss = loss_of(net, windows)
        loss.backward()
        trainer.step(args.batch_size)
        losses.append(float(loss.mean().asscalar()))
        bar.update()
        if step % REPORTED == 0:
            loss_text = f"{losses[-1]:.4f}"
            bar.set_postfix(loss=loss_text, **traffic_postfix(trainer), refresh=False)
    return losses


def exchanges(args: argparse.Namespace, steps: int) -> int:
    """Return how often a vector is exchanged in a number of steps.

    `compression_stats` reports averages over exchanges. Without an algorithm, each step has one.
    """
    algorithm = algorithms.parse(algorithm_of(args))
    if not isinstance(algorithm, LocalSteps):
        return steps
    first = min(steps, algorithm.start)  # each of them has an exchange
    return first + steps // algorithm.every - first // algorithm.every


def main() -> None:
    args = parse_arguments()
    bps.init()
    rank, size = bps.rank(), bps.size()
    text = load_text(rank, size)
    require_same_text(text, bps.allreduce(text.digest, average=False), size)
    validation = validation_windows(text, args.eval_windows, args.context, rank, size)

    mx.random.seed(args.seed)
    net = LanguageModel(args.width, args.depth)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "adam",
        {"learning_rate": args.lr},
        compression_params=compression_params(args),
        algorithm=algorithm_of(args),
    )

    log = EpochLog(args, rank, size)
    bar = progress_bar(args.steps, rank, unit="step")
    for done in range(0, args.steps, args.eval_every):
        steps = range(done + 1, min(done + args.eval_every, args.steps) + 1)
        start = time.perf_counter()
        losses = train_steps(net, trainer, text, args, steps, bar)
        seconds = time.perf_counter() - start
        found = validation_loss(net, validation)
        if rank == 0:
            traffic = trainer.compression_stats()["total"]
            count = exchanges(args, steps[-1])
            pushed = traffic["pushed_bytes"] * count
            record = {
                "step": steps[-1],
                "train_loss": sum(losses) / len(losses),
                "validation_loss": found,
                "seconds": seconds,
                "pushed_bytes": pushed,
                "pulled_bytes": traffic["pulled_bytes"] * count,
                "step_loss": losses,
            }
            log.write(record)
            say(
                f"step {steps[-1]} of {args.steps}: loss {record['train_loss']:.4f}, "
                f"validation loss {found:.4f} nats per byte, "
                f"{pushed / steps[-1]:,.0f} bytes per step, {seconds:.1f} s"
            )
    bar.close()
    log.close()
    print(f"rank {rank} of {size}: checksum of the parameters {parameter_checksum(net)}")
    bps.shutdown()


if __name__ == "__main__":
    main()

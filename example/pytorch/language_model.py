"""Train a byte-level transformer on the source of Python's standard library, under torchrun.

Without --algorithm, DistributedDataParallel averages gradients. With it, DistributedOptimizer
averages the vectors that the algorithm chooses.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Sequence

import numpy as np
import torch
from torch.nn import functional

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

import checkpoint
from common.algorithm_arguments import add_algorithm_arguments
from common.arguments import (
    HelpFormatter,
    add_compression_arguments,
    add_log_arguments,
)
from common.log import EpochLog
from common.progress import progress_bar, say, traffic_postfix
from common.source_text import load_text, require_same_text, training_windows, validation_windows
from common.stats import stats_table
from muon import muon_adamw
from transformer import Transformer, generate
from workers import (
    add_checkpoint_arguments,
    device_of,
    distributed,
    is_due,
    print_checksum,
    summed,
    traffic,
)

LAST_RATE = 0.1  # of --lr, where the cosine ends
PROMPT = b"def "
REPORTED = 10  # steps between updates of the numbers on the progress bar


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    group = parser.add_argument_group("model")
    group.add_argument("--width", type=int, default=128, help="size of each position's vector")
    group.add_argument("--depth", type=int, default=4, help="number of blocks")
    group.add_argument("--heads", type=int, default=4, help="attention heads of a block")
    group.add_argument("--context", type=int, default=128, help="bytes that the model reads")
    group = parser.add_argument_group("training")
    group.add_argument("--steps", type=int, default=1000, help="number of steps")
    group.add_argument(
        "-b", "--batch-size", type=int, default=16, help="windows of text per step and worker"
    )
    group.add_argument(
        "--optimizer",
        choices=("adamw", "muon"),
        default="adamw",
        help="muon: for the matrices of the blocks; needs PyTorch 2.9",
    )
    group.add_argument(
        "--lr", type=float, default=2e-3, help="learning rate, for any number of workers"
    )
    group.add_argument(
        "--lr-mode", choices=("cosine", "constant"), default="cosine", help="kind of decay"
    )
    group.add_argument("--warmup-steps", type=int, default=20, help="steps of linear warm-up")
    group.add_argument(
        "--betas", type=float, nargs=2, default=(0.9, 0.95), help="AdamW's beta1 and beta2"
    )
    group.add_argument("--eps", type=float, default=1e-8, help="AdamW's epsilon")
    group.add_argument(
        "--wd", "--weight-decay", type=float, default=0.1, help="weight decay of matrices"
    )
    group.add_argument(
        "--max-grad-norm", type=float, default=1.0, help="clip gradients to this norm; 0: do not"
    )
    group.add_argument("--seed", type=int, default=0, help="seed of weights and data order")
    group = parser.add_argument_group("evaluation")
    group.add_argument(
        "--eval-every",
        type=int,
        default=100,
        help="steps between evaluations; compressors with a warm-up count them as an epoch",
    )
    group.add_argument(
        "--eval-windows", type=int, default=512, help="validation windows of all workers together"
    )
    group.add_argument("--sample", type=int, default=300, help="bytes of text to generate finally")
    add_log_arguments(group, "evaluation")
    group.add_argument(
        "--stats", action="store_true", help="finally print each tensor's bytes and times"
    )
    add_checkpoint_arguments(parser, unit="step")
    parser.set_defaults(save_period=100)
    add_algorithm_arguments(parser)
    add_compression_arguments(parser, clip=False)
    return parser.parse_args(arguments)


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Return the learning rate of a step; steps count from 1."""
    rate = args.lr * min(1.0, step / max(1, args.warmup_steps))
    if args.lr_mode == "constant":
        return rate
    cosine = (1 + math.cos(math.pi * step / args.steps)) / 2
    return rate * (LAST_RATE + (1 - LAST_RATE) * cosine)


def adamw(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.AdamW:
    """Return the optimizer. Only matrices have weight decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": args.wd},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=tuple(args.betas), eps=args.eps)


class Training:
    """A training run of this worker.

    Parameters
    ----------
    args : Namespace
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, device_of(args)
        rank, size = bps.rank(), bps.size()
        self.text = load_text(rank, size)
        (total,) = summed([self.text.digest], self.device)
        require_same_text(self.text, total, size)
        self.validation = validation_windows(self.text, args.eval_windows, args.context, rank, size)
        torch.manual_seed(args.seed)
        net = Transformer(args.width, args.depth, args.heads, args.context)
        self.net = net.to(self.device)
        self.optimizer: torch.optim.Optimizer = adamw(self.net, args)
        if args.optimizer == "muon":
            self.optimizer = muon_adamw(self.net, self.optimizer)
        self.connect()

    def connect(self) -> None:
        """Set the model and the state of the compression, None if there is none."""
        found = distributed(self.net, self.optimizer, self.args)
        self.model, self.optimizer, self.compression = found

    def run(self) -> None:
        """Train to the last step, starting from the checkpoint of --resume if it is given."""
        args, done = self.args, 0
        if args.resume:
            done = checkpoint.load(args.resume, self.net, self.optimizer, self.compression)
        if done >= args.steps:
            raise ValueError(f"--steps must be above the checkpoint's {done}, got {args.steps}")
        self.done_before, self.losses, self.seconds = done, [], 0.0
        self.log = EpochLog(args, bps.rank(), bps.size(), resume=done > 0)
        self.bar = progress_bar(args.steps, bps.rank(), done, unit="step")
        self.say(
            f"training {sum(p.numel() for p in self.net.parameters()):,} parameters, "
            f"with {len(self.text.training):,} bytes of text on worker 0"
        )
        for step in range(done + 1, args.steps + 1):
            self.train_step(step)
            if step % args.eval_every == 0 or step == args.steps:
                self.evaluate(step)
            if is_due(args, step, args.steps):
                path = Path(args.save) / f"step-{step}"
                checkpoint.save(path, step, self.net, self.optimizer, self.compression)
        self.bar.close()
        self.log.close()
        if bps.rank() == 0:
            self.show()

    def train_step(self, step: int) -> None:
        """Train on one batch."""
        args, start = self.args, time.perf_counter()
        if self.compression is not None and args.compression_warmup_epochs:
            self.compression.set_epoch((step - 1) // args.eval_every)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(args, step)
        order = [args.seed, step, bps.rank()]
        windows = training_windows(self.text, args.batch_size, args.context, order)
        self.optimizer.zero_grad()
        loss = self.loss(self.model, windows)
        loss.backward()
        if args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), args.max_grad_norm)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds += time.perf_counter() - start
        self.bar.update()
        if bps.rank() == 0 and step % REPORTED == 0:
            self.bar.set_postfix(
                {"loss": f"{self.losses[-1]:.4f}", **traffic_postfix(self.compression)},
                refresh=False,
            )

    def loss(
        self, model: torch.nn.Module, windows: np.ndarray, reduction: str = "mean"
    ) -> torch.Tensor:
        """Return the mean or the sum of the loss in nats, over all predicted bytes."""
        data = torch.from_numpy(windows).to(self.device, torch.int64)
        logits = model(data[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits, data[:, 1:].flatten(), reduction=reduction)

    def evaluate(self, step: int) -> None:
        """Write a record of the steps since the last one, with the validation loss."""
        losses, seconds = self.losses, self.seconds
        self.losses, self.seconds = [], 0.0
        validation_loss = self.validation_loss()
        pushed, pulled = traffic(self.net, self.compression)
        steps = step - self.done_before
        record = {
            "step": step,
            "train_loss": sum(losses) / len(losses),
            "validation_loss": validation_loss,
            "seconds": seconds,
            "pushed_bytes": pushed * steps,
            "pulled_bytes": pulled * steps,
            "step_loss": losses,
        }
        self.log.write(record)
        self.say(
            f"step {step} of {self.args.steps}: loss {record['train_loss']:.4f}, "
            f"validation loss {validation_loss:.4f} nats per byte, "
            f"{pushed:,.0f} bytes per step, {seconds:.1f} s"
        )

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the validation loss in nats per byte; each worker evaluates its own windows."""
        args = self.args
        parts = np.array_split(self.validation, math.ceil(len(self.validation) / args.batch_size))
        nats = sum(self.loss(self.net, part, "sum").item() for part in parts)
        return summed([nats], self.device)[0] / (args.eval_windows * args.context)

    def show(self) -> None:
        """Print the statistics, if they are asked for, and a sample of generated text."""
        args = self.args
        if args.stats and self.compression is not None:
            print(stats_table(self.compression.compression_stats()))
        if args.sample:
            text = generate(self.net, PROMPT, args.sample, args.seed).decode("utf-8", "replace")
            print(f"\n{text}\n", flush=True)

    def say(self, line: str) -> None:
        """Print a line, on worker 0 only."""
        if bps.rank() == 0:
            say(line)


def main(kind: type[Training] = Training, arguments: Sequence[str] | None = None) -> None:
    """Train.

    Parameters
    ----------
    kind : type
        The class of the training run.
    arguments : sequence of str, optional
        Default: those of the command line.
    """
    args = parse_arguments(arguments)
    bps.init()
    training = kind(args)
    training.run()
    print_checksum(training.net)
    bps.shutdown()


if __name__ == "__main__":
    main()

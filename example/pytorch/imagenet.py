"""Train a network on ImageNet, or on other images with one folder per class, under torchrun.

Arguments that PyTorch's ImageNet example has too have the same names here.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

import checkpoint
from common.arguments import HelpFormatter, add_compression_arguments, add_log_arguments
from common.log import EpochLog
from common.progress import progress_bar, traffic_postfix
from common.shuffling import steps_per_epoch
from images import Augment, ImageFolder, Middle, training_batches, validation_batches
from resnet import network
from workers import (
    add_checkpoint_arguments,
    device_of,
    is_due,
    parallel,
    print_checksum,
    summed,
    traffic,
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("data", help="folder with train/ and val/; each has one folder per class")
    group = parser.add_argument_group("training")
    group.add_argument(
        "-a", "--arch", default="resnet18", help="network; without torchvision resnet18 or 34"
    )
    group.add_argument("-j", "--workers", type=int, default=4, help="processes that load images")
    group.add_argument(
        "--epochs", dest="num_epochs", type=int, default=90, help="passes over the training data"
    )
    group.add_argument(
        "-b", "--batch-size", type=int, default=32, help="images per step and worker"
    )
    group.add_argument(
        "--lr", type=float, default=0.1, help="learning rate, for any number of workers"
    )
    group.add_argument(
        "--lr-step-size", type=int, default=30, help="epochs after which --lr is divided by 10"
    )
    group.add_argument(
        "--lr-mode", choices=("step", "cosine"), default="step", help="kind of decay"
    )
    group.add_argument("--warmup-epochs", type=int, default=0, help="epochs of linear warm-up")
    group.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer")
    group.add_argument("--wd", "--weight-decay", type=float, default=1e-4, help="weight decay")
    group.add_argument("--label-smoothing", type=float, default=0.0, help="share for all classes")
    group.add_argument("--input-size", type=int, default=224, help="height and width in pixels")
    group.add_argument("--amp", action="store_true", help="automatic mixed precision, on a GPU")
    group.add_argument("--seed", type=int, default=0, help="seed of weights and shuffling")
    add_log_arguments(group, "epoch")
    add_checkpoint_arguments(parser)
    add_compression_arguments(parser, clip=False)
    return parser.parse_args()


def learning_rate(args: argparse.Namespace, epochs: float) -> float:
    """Return the learning rate after a number of epochs, which may be fractional."""
    if epochs < args.warmup_epochs:
        return args.lr * epochs / args.warmup_epochs
    if args.lr_mode == "cosine":
        return args.lr * (1 + math.cos(math.pi * epochs / args.num_epochs)) / 2
    return args.lr * 0.1 ** (int(epochs) // args.lr_step_size)


class Training:
    """A training run of this worker.

    Parameters
    ----------
    args : Namespace
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, device_of(args)
        if args.amp and self.device.type != "cuda":
            raise ValueError("--amp needs a GPU")
        folder = Path(args.data)
        self.train_images = ImageFolder(folder / "train", Augment(args.input_size))
        self.val_images = ImageFolder(folder / "val", Middle(args.input_size))
        torch.manual_seed(args.seed)
        self.net = network(args.arch, len(self.train_images.classes)).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.wd
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.amp)
        self.ddp, self.compression = parallel(
            self.net, self.optimizer, args, self.scaler if args.amp else None
        )
        self.loss = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
        count = len(self.train_images)
        self.steps = steps_per_epoch(count, args.batch_size, bps.size())

    def run(self) -> None:
        """Train to the last epoch, starting from the checkpoint of --resume if it is given."""
        args, rank, size = self.args, bps.rank(), bps.size()
        done = 0
        if args.resume:
            done = checkpoint.load(args.resume, self.net, self.optimizer, self.compression)
        log = EpochLog(args, rank, size, resume=done > 0)
        of_epoch = self.steps * args.batch_size * size
        self.bar = progress_bar(args.num_epochs * of_epoch, rank, done * of_epoch)
        for epoch in range(done + 1, args.num_epochs + 1):
            start = time.perf_counter()
            step_loss = self.train_epoch(epoch)
            seconds = time.perf_counter() - start
            top1, top5 = self.accuracies()
            pushed, pulled = traffic(self.net, self.compression)
            steps = (epoch - done) * self.steps
            record = {
                "epoch": epoch,
                "train_loss": sum(step_loss) / len(step_loss),
                "validation_accuracy": top1,
                "validation_top5": top5,
                "seconds": seconds,
                "pushed_bytes": pushed * steps,
                "pulled_bytes": pulled * steps,
                "step_loss": step_loss,
            }
            log.write(record)
            self.bar.set_postfix(
                epoch=epoch,
                loss=record["train_loss"],
                accuracy=top1,
                **traffic_postfix(self.compression),
            )
            if is_due(args, epoch, args.num_epochs):
                path = Path(args.save) / f"epoch-{epoch}"
                checkpoint.save(path, epoch, self.net, self.optimizer, self.compression)
        self.bar.close()
        log.close()

    def train_epoch(self, epoch: int) -> list:
        """Train one epoch; return the loss of each step."""
        args, losses = self.args, []
        if self.compression is not None:
            self.compression.set_epoch(epoch - 1)
        seed = (args.seed, epoch)
        batches = training_batches(
            self.train_images, args.batch_size, bps.rank(), bps.size(), seed, args.workers
        )
        for step, (pixels, labels) in enumerate(batches):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(args, epoch - 1 + (step + 1) / self.steps)
            with torch.autocast(self.device.type, enabled=args.amp):
                loss = self.loss(self.ddp(pixels.to(self.device)), labels.to(self.device))
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.append(loss.detach())
            self.bar.update(args.batch_size * bps.size())
        return torch.stack(losses).tolist()

    @torch.no_grad()
    def accuracies(self) -> tuple:
        """Return top-1 and top-5 accuracy on the validation images of all workers."""
        args, right = self.args, [0, 0]
        batches = validation_batches(
            self.val_images, args.batch_size, bps.rank(), bps.size(), args.workers
        )
        self.net.eval()
        for pixels, labels in batches:
            logits = self.net(pixels.to(self.device))
            likeliest = logits.topk(min(5, logits.shape[1])).indices.cpu()
            hits = likeliest == labels[:, None]
            right[0] += int(hits[:, 0].sum())
            right[1] += int(hits.sum())
        self.net.train()
        return tuple(number / len(self.val_images) for number in summed(right, self.device))


def main() -> None:
    args = parse_arguments()
    bps.init()
    training = Training(args)
    training.run()
    print_checksum(training.net)
    bps.shutdown()


if __name__ == "__main__":
    main()

"""Train a small convolutional network on handwritten digits, on one worker or under torchrun."""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import nn

import gluon_gc.torch as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

import checkpoint
from common.arguments import HelpFormatter, add_compression_arguments, add_training_arguments
from common.digits import Images, load_images
from common.log import EpochLog
from common.progress import progress_bar, traffic_postfix
from common.shuffling import shuffled_share
from common.stats import stats_table
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
    add_training_arguments(parser)
    parser.set_defaults(num_epochs=15, lr=0.01)
    add_checkpoint_arguments(parser)
    add_compression_arguments(parser, clip=False)
    return parser.parse_args()


def digits_network() -> nn.Sequential:
    """Return a network of 416,362 trained parameters, 94 % of them in one tensor."""
    layers = []
    for before, channels in ((1, 32), (32, 64)):
        convolution = nn.Conv2d(before, channels, kernel_size=3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
    dense = [nn.Linear(64 * 4 * 4, 384), nn.ReLU(), nn.Linear(384, 10)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), *dense)


def accuracy(net: nn.Module, images: Images, device: torch.device) -> float:
    """Return the accuracy on all images; each worker evaluates its own share of them."""
    own = slice(bps.rank(), None, bps.size())
    net.eval()
    with torch.no_grad():
        predicted = net(torch.from_numpy(images.pixels[own]).to(device)).argmax(dim=1).cpu()
    net.train()
    right = int((predicted == torch.from_numpy(images.labels[own])).sum())
    return summed([right], device)[0] / len(images.labels)


def main() -> None:
    args = parse_arguments()
    bps.init()
    rank, size, device = bps.rank(), bps.size(), device_of(args)
    train_images, val_images = load_images()

    torch.manual_seed(args.seed)
    net = digits_network().to(device)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.wd
    )
    ddp, compression = parallel(net, optimizer, args)
    done = checkpoint.load(args.resume, net, optimizer, compression) if args.resume else 0

    log = EpochLog(args, rank, size, resume=done > 0)
    of_epoch = len(train_images.labels) // (args.batch_size * size) * args.batch_size * size
    bar = progress_bar(args.num_epochs * of_epoch, rank, done * of_epoch)
    validation_accuracy, steps = 0.0, 0
    for epoch in range(done + 1, args.num_epochs + 1):
        if compression is not None:
            compression.set_epoch(epoch - 1)
        start = time.perf_counter()
        losses = []
        order = (args.seed, epoch)
        for chosen in shuffled_share(len(train_images.labels), args.batch_size, rank, size, order):
            pixels = torch.from_numpy(train_images.pixels[chosen]).to(device)
            labels = torch.from_numpy(train_images.labels[chosen]).long().to(device)
            loss = nn.functional.cross_entropy(ddp(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            bar.update(args.batch_size * size)
        step_loss = torch.stack(losses).tolist()
        steps += len(step_loss)
        seconds = time.perf_counter() - start
        validation_accuracy = accuracy(net, val_images, device)
        pushed, pulled = traffic(net, compression)
        record = {
            "epoch": epoch,
            "train_loss": sum(step_loss) / len(step_loss),
            "validation_accuracy": validation_accuracy,
            "seconds": seconds,
            "pushed_bytes": pushed * steps,
            "pulled_bytes": pulled * steps,
            "step_loss": step_loss,
        }
        log.write(record)
        bar.set_postfix(
            epoch=epoch,
            loss=record["train_loss"],
            accuracy=validation_accuracy,
            **traffic_postfix(compression),
        )
        if is_due(args, epoch, args.num_epochs):
            path = Path(args.save) / f"epoch-{epoch}"
            checkpoint.save(path, epoch, net, optimizer, compression)
    bar.close()
    log.close()
    if rank == 0:
        if args.stats and compression is not None:
            print(stats_table(compression.compression_stats()))
        print(f"validation accuracy {validation_accuracy:.4f}")
    print_checksum(net)
    bps.shutdown()


if __name__ == "__main__":
    main()

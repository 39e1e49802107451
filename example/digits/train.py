"""Train a small convolutional network on handwritten digits, on one worker or on a cluster."""

import argparse
import sys
import time
from pathlib import Path

import mxnet as mx
from mxnet import autograd, gluon

import gluon_gc as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.arguments import (
    HelpFormatter,
    add_compression_arguments,
    add_training_arguments,
    compression_params,
)
from common.checksum import parameter_checksum
from common.digits import Images, load_images
from common.log import EpochLog
from common.progress import STEPS_AHEAD, progress_bar, traffic_postfix
from common.shuffling import steps_per_epoch
from common.stats import stats_table
from data import batches
from network import digits_network


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add_training_arguments(parser)
    parser.set_defaults(num_epochs=15, lr=0.01)
    add_compression_arguments(parser)
    return parser.parse_args()


def accuracy(net: gluon.Block, images: Images) -> float:
    """Return the accuracy on all images; each worker evaluates its own share of them."""
    own = slice(bps.rank(), None, bps.size())
    predicted = net(mx.nd.array(images.pixels[own])).argmax(axis=1).asnumpy()
    right = float((predicted == images.labels[own]).sum())
    return bps.allreduce(right, average=False) / len(images.labels)


def main() -> None:
    args = parse_arguments()
    bps.init()
    rank, size = bps.rank(), bps.size()
    train_images, val_images = load_images()
    steps = steps_per_epoch(len(train_images.labels), args.batch_size, size)

    mx.random.seed(args.seed)
    net = digits_network()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    softmax_loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": args.lr, "momentum": args.momentum, "wd": args.wd},
        compression_params=compression_params(args),
    )

    log = EpochLog(args, rank, size)
    step_images = args.batch_size * size
    bar = progress_bar(args.num_epochs * steps * step_images, rank)
    for epoch in range(1, args.num_epochs + 1):
        trainer.set_epoch(epoch - 1)
        start = time.perf_counter()
        losses = []
        order = (args.seed, epoch)
        for pixels, labels in batches(train_images, args.batch_size, rank, size, order):
            with autograd.record():
                loss = softmax_loss(net(pixels), labels)
            loss.backward()
            trainer.step(args.batch_size)
            losses.append(loss.mean())  # reading it here would wait for the end of the step
            if len(losses) > STEPS_AHEAD:
                losses[-1 - STEPS_AHEAD].wait_to_read()
                bar.update(step_images)
        step_loss = mx.nd.concat(*losses, dim=0).asnumpy()
        mx.nd.waitall()
        bar.update(min(steps, STEPS_AHEAD) * step_images)
        seconds = time.perf_counter() - start
        validation_accuracy = accuracy(net, val_images)

        if rank == 0:
            traffic = trainer.compression_stats()["total"]
            record = {
                "epoch": epoch,
                "train_loss": float(step_loss.mean()),
                "validation_accuracy": validation_accuracy,
                "seconds": seconds,
                "pushed_bytes": traffic["pushed_bytes"] * steps * epoch,
                "pulled_bytes": traffic["pulled_bytes"] * steps * epoch,
                "step_loss": step_loss.tolist(),
            }
            log.write(record)
            bar.set_postfix(
                epoch=epoch,
                loss=f"{record['train_loss']:.4f}",
                accuracy=f"{validation_accuracy:.4f}",
                **traffic_postfix(trainer),
            )
    bar.close()
    log.close()
    if args.stats and rank == 0:
        print(stats_table(trainer.compression_stats()))
    print(f"rank {rank} of {size}: checksum of the parameters {parameter_checksum(net)}")
    bps.shutdown()


if __name__ == "__main__":
    main()

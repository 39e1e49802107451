"""Train a small convolutional network on MNIST, on one worker or on a cluster."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision.transforms import Normalize, ToTensor

import gluon_gc as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.arguments import (
    HelpFormatter,
    add_compression_arguments,
    add_run_arguments,
    add_schedule_arguments,
    add_training_arguments,
)
from common.datasets import default_folder, mnist
from common.images import DatasetImages
from common.mlxtend_digits import DEVIATION, MEAN
from common.shares import share_of_this_worker
from common.training import Recipe, Training


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add_training_arguments(parser)
    add_schedule_arguments(parser)
    add_run_arguments(parser)
    add_compression_arguments(parser)
    parser.add_argument(
        "--no-cuda",
        dest="num_gpus",
        action="store_const",
        const=0,
        help="train on the CPU; by default each worker uses a GPU if there is one",
    )
    parser.set_defaults(
        num_epochs=5,
        batch_size=64,
        lr=0.01,
        num_workers=2,
        num_gpus=min(1, mx.context.num_gpus()),
        data_dir=default_folder("mnist"),
    )
    return parser.parse_args(argv)


def network() -> gluon.nn.HybridSequential:
    """Return an uninitialised network of two convolutions and two dense layers."""
    net = gluon.nn.HybridSequential()
    for channels in (20, 50):
        net.add(gluon.nn.Conv2D(channels, kernel_size=5, activation="relu"), gluon.nn.MaxPool2D())
    net.add(gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(10))
    net.hybridize(static_alloc=True)
    return net


def main() -> None:
    args = parse_arguments()
    bps.init()
    images = DatasetImages(
        [mnist(args.data_dir, train) for train in (True, False)],
        augment=[],
        prepare=[ToTensor(), Normalize(MEAN, DEVIATION)],
        share=share_of_this_worker(args),
        processes=args.num_workers,
    )
    Training(network(), images, args, "mnist", Recipe()).run()
    bps.shutdown()


if __name__ == "__main__":
    main()

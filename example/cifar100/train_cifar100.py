"""Train a network of GluonCV's zoo on CIFAR-100 or CIFAR-10, on one worker or on a cluster."""

import argparse
import sys
from pathlib import Path
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet.gluon.data import ArrayDataset
from mxnet.gluon.data.vision.transforms import Normalize, RandomFlipLeftRight, ToTensor

import gluon_gc as bps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.arguments import (
    HelpFormatter,
    add_compression_arguments,
    add_model_arguments,
    add_run_arguments,
    add_schedule_arguments,
    add_training_arguments,
)
from common.datasets import cifar10, cifar100, default_folder
from common.images import DatasetImages
from common.model import zoo_network
from common.shares import share_of_this_worker
from common.training import Recipe, Training
from common.zoo import RandomCrop


class Dataset(NamedTuple):
    """A data set, with the mean and deviation of its training pixels in [0, 1] for each colour."""

    read: Callable[[str, bool], ArrayDataset]
    classes: int
    mean: Tuple[float, ...]
    deviation: Tuple[float, ...]


DATASETS = {
    "cifar100": Dataset(cifar100, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "cifar10": Dataset(cifar10, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add_training_arguments(parser)
    add_schedule_arguments(parser)
    add_model_arguments(parser)
    add_run_arguments(parser)
    add_compression_arguments(parser)
    parser.add_argument(
        "--dataset", choices=sorted(DATASETS), default="cifar100", help="the data set"
    )
    parser.set_defaults(num_epochs=200, wd=5e-4, lr_decay_epoch="100,150")
    args = parser.parse_args(argv)
    args.data_dir = args.data_dir or default_folder(args.dataset)
    return args


def main() -> None:
    args = parse_arguments()
    bps.init()
    dataset = DATASETS[args.dataset]
    images = DatasetImages(
        [dataset.read(args.data_dir, train) for train in (True, False)],
        augment=[RandomCrop(32, pad=4), RandomFlipLeftRight()],
        prepare=[ToTensor(), Normalize(dataset.mean, dataset.deviation)],
        share=share_of_this_worker(args),
        processes=args.num_workers,
    )
    name = f"{args.dataset}-{args.model}"
    recipe = Recipe(mx.init.Xavier(), uncompressed="nag", decay_after_warmup=True)
    Training(zoo_network(args, dataset.classes), images, args, name, recipe).run()
    bps.shutdown()


if __name__ == "__main__":
    main()

"""Train a network of GluonCV's model zoo on CIFAR-100, on one worker or on a cluster."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from gluoncv.data.transforms import RandomCrop
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
from common.datasets import cifar100, default_folder
from common.images import DatasetImages
from common.model import zoo_network
from common.shares import share_of_this_worker
from common.training import Training

CLASSES = 100
# Of the training images' pixels in [0, 1].
MEAN, DEVIATION = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add_training_arguments(parser)
    add_schedule_arguments(parser)
    add_model_arguments(parser)
    add_run_arguments(parser)
    add_compression_arguments(parser)
    parser.set_defaults(
        num_epochs=200, wd=5e-4, lr_decay_epoch="100,150", data_dir=default_folder("cifar100")
    )
    return parser.parse_args(argv)


def main() -> None:
    args = parse_arguments()
    bps.init()
    images = DatasetImages(
        [cifar100(args.data_dir, train) for train in (True, False)],
        augment=[RandomCrop(32, pad=4), RandomFlipLeftRight()],
        prepare=[ToTensor(), Normalize(MEAN, DEVIATION)],
        share=share_of_this_worker(args),
        processes=args.num_workers,
    )
    Training(zoo_network(args, CLASSES), images, args, f"cifar100-{args.model}").run()
    bps.shutdown()


if __name__ == "__main__":
    main()

"""Train a network of GluonCV's model zoo on ImageNet, on one worker or on a cluster."""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

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
from common.datasets import default_folder
from common.model import zoo_network
from common.targets import Targets
from common.training import Recipe, Training
from sources import folder_images, record_images

CLASSES = 1000
SMOOTHING = 0.1


def add_imagenet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this example alone."""
    group = parser.add_argument_group("ImageNet")
    group.add_argument("--use-rec", action="store_true", help="read RecordIO files, not --data-dir")
    for name in ("train", "val"):
        for option, ending in ((f"--rec-{name}", "rec"), (f"--rec-{name}-idx", "idx")):
            path = f"{default_folder('imagenet')}/rec/{name}.{ending}"
            group.add_argument(option, default=path, metavar="FILE", help="for --use-rec")
    group.add_argument("--input-size", type=int, default=224, help="height and width in pixels")
    group.add_argument(
        "--crop-ratio",
        type=float,
        default=0.875,
        help="share of a validation image's side that the centre crop keeps",
    )
    group.add_argument(
        "--label-smoothing", action="store_true", help=f"smooth labels by {SMOOTHING}"
    )
    group.add_argument("--mixup", action="store_true", help="train on mixtures of two images")
    group.add_argument(
        "--mixup-alpha", type=float, default=0.2, help="a larger value mixes images more"
    )
    group.add_argument("--mixup-off-epoch", type=int, default=0, help="final epochs without mixup")


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add_training_arguments(parser)
    add_schedule_arguments(parser)
    add_model_arguments(parser)
    add_run_arguments(parser)
    add_imagenet_arguments(parser)
    add_compression_arguments(parser)
    parser.set_defaults(num_epochs=120, data_dir=default_folder("imagenet"))
    return parser.parse_args(argv)


def targets(args: argparse.Namespace) -> Optional[Targets]:
    """Return the targets for --label-smoothing and --mixup, or None without them."""
    if not (args.label_smoothing or args.mixup):
        return None
    return Targets(
        CLASSES,
        SMOOTHING if args.label_smoothing else 0.0,
        args.mixup_alpha if args.mixup else 0.0,
        args.num_epochs - args.mixup_off_epoch,
    )


def main() -> None:
    args = parse_arguments()
    bps.init()
    images = (record_images if args.use_rec else folder_images)(args)
    net = zoo_network(args, CLASSES)
    recipe = Recipe(uncompressed="nag")
    Training(net, images, args, f"imagenet-{args.model}", recipe, targets(args)).run()
    bps.shutdown()


if __name__ == "__main__":
    main()

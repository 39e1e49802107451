"""Command-line arguments that every training example takes, named as in BytePS's examples."""

import argparse
from typing import Any, Dict


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of plain SGD training. `set_defaults` gives an example its own defaults."""
    group = parser.add_argument_group("training")
    group.add_argument("--num-epochs", type=int, default=20, help="passes over the training data")
    group.add_argument("--batch-size", type=int, default=32, help="images a step on each worker")
    group.add_argument("--lr", type=float, default=0.1, help="learning rate")
    group.add_argument("--momentum", type=float, default=0.9)
    group.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    group.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    group.add_argument("--logging-file", default="", help="gets one line of JSON an epoch")
    group.add_argument(
        "--stats", action="store_true", help="print what each gradient's way took, at the end"
    )


def add_compression_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose how gradients are compressed; all are off by default."""
    group = parser.add_argument_group("gradient compression")
    group.add_argument("--compressor", default="", help="name of the compressor, e.g. onebit")
    group.add_argument("--ef", default="", help="error feedback: vanilla, corrected or sparse")
    group.add_argument("--compress-momentum", default="", help="before compression: nesterov")
    group.add_argument("--onebit-scaling", action="store_true", help="send the mean magnitude too")
    group.add_argument("--k", type=float, help="elements that a compressor keeps, or its levels")
    group.add_argument("--partition", default="", help="levels of dithering: linear or natural")
    group.add_argument("--normalize", default="", help="what they divide: max or l2")
    group.add_argument("--compressor-seed", type=int, help="of what a compressor draws at random")
    group.add_argument("--dgc-warmup-epochs", type=int, help="epochs in which dgc sends more")
    group.add_argument("--fp16-pushpull", action="store_true", help="send float16")


def compression_params(args: argparse.Namespace) -> Dict[str, Any]:
    """Turn parsed arguments into the `compression_params` of `DistributedTrainer`.

    Returns
    -------
    dict
        An empty string, None or False means that the feature is off. The trainer checks the values.
    """
    return {
        "compressor": args.compressor,
        "ef": args.ef,
        "momentum": args.compress_momentum,
        "scaling": args.onebit_scaling,
        "k": args.k,
        "partition": args.partition,
        "normalize": args.normalize,
        "seed": args.compressor_seed,
        "warmup_epochs": args.dgc_warmup_epochs,
        "fp16": args.fp16_pushpull,
    }

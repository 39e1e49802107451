"""Functions that the scripts share; none of them uses gluon_gc."""

import argparse
import logging
from typing import Any, Callable, Mapping, Sequence

from gluoncv.utils import LRScheduler, LRSequential
from mxnet import gluon, nd
from mxnet.gluon import utils
from mxnet.gluon.data.vision import datasets


def arguments(defaults: Mapping[str, Any], **required: type) -> argparse.Namespace:
    """Parse a command line: an argument has its default's type, and False makes it a switch."""
    parser = argparse.ArgumentParser()
    for name, kind in required.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name, default in defaults.items():
        names = ["-j", f"--{name}"] if name == "num-data-workers" else [f"--{name}"]
        kwargs = {"action": "store_true"} if default is False else {"type": type(default)}
        parser.add_argument(*names, default=default, **kwargs)
    return parser.parse_args()


def log_to(file: str) -> logging.Logger:
    """Return the root logger as in the published scripts: to a file and stderr, from INFO on."""
    logger = logging.getLogger("")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.FileHandler(file))
    logger.addHandler(logging.StreamHandler())
    return logger


def schedule(
    opt: argparse.Namespace, mode: str, rate: float, batches: int, decay: Sequence[int]
) -> LRSequential:
    """Return GluonCV's learning-rate schedule: a linear warm-up, then `mode`; batches per epoch."""
    warm_up = {"base_lr": opt.warmup_lr, "target_lr": rate, "nepochs": opt.warmup_epochs}
    then = {"base_lr": rate, "target_lr": 0, "nepochs": opt.num_epochs - opt.warmup_epochs}
    steps = {"step_epoch": decay, "step_factor": opt.lr_decay, "power": 2}
    return LRSequential(
        [
            LRScheduler("linear", iters_per_epoch=batches, **warm_up),
            LRScheduler(mode, iters_per_epoch=batches, **then, **steps),
        ]
    )


def trust_made_files() -> None:
    """Let Gluon read generated data sets, whose checksums differ, without a download."""
    utils.check_sha1 = datasets.check_sha1 = lambda path, sha1: True


def as_planes(dtype: str) -> Callable[[nd.NDArray, int], tuple]:
    """Return the image transform of the MNIST scripts."""
    return lambda image, label: (nd.transpose(image.astype(dtype) / 255 - 0.5, (2, 0, 1)), label)


def mnist_network() -> gluon.nn.HybridSequential:
    """Return the network of the MNIST scripts."""
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        for channels in (20, 50):
            net.add(gluon.nn.Conv2D(channels=channels, kernel_size=5, activation="relu"))
            net.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(10))
    return net

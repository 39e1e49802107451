"""Creates the network that the arguments of `add_model_arguments` name."""

import argparse
from typing import Any, Dict

from mxnet import gluon

from .zoo import GroupNorm, get_model


def _options(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the constructor arguments that only some networks take."""
    options: Dict[str, Any] = {}
    if args.model.startswith("cifar_wideresnet"):
        options["drop_rate"] = args.drop_rate
    if args.model.startswith("vgg"):
        options["batch_norm"] = args.batch_norm
    if args.model.startswith("resnext"):
        options["use_se"] = args.use_se
    if args.use_gn:
        options["norm_layer"] = GroupNorm
    if args.last_gamma:
        options["last_gamma"] = True
    return options


def zoo_network(args: argparse.Namespace, classes: int) -> gluon.HybridBlock:
    """Return an uninitialised network of GluonCV's zoo.

    Raises
    ------
    ValueError
        If the zoo has no network of that name.
    """
    net = get_model(args.model, pretrained=False, classes=classes, **_options(args))
    if args.mode != "imperative":
        net.hybridize(static_alloc=True)
    if args.no_wd:
        for parameter in net.collect_params(".*gamma|.*beta|.*bias").values():
            parameter.wd_mult = 0.0
    return net

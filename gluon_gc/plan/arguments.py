"""The arguments of `python -m gluon_gc plan`.

Importing this module loads neither the library nor a framework.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from importlib.util import find_spec
from typing import Any

_RATES = {"Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}  # bits per second
_NUMBERS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
_OPTIMIZERS = ("sgd", "adam")
_DESCRIPTION = """\
Predicts the speed-up of each compressor and algorithm over DistributedDataParallel. Start it like
training, with torchrun or another launcher: it measures the links and the compressors for some
seconds. On one machine, --rate and --workers describe the network."""


def rate(text: str) -> float:
    """Return bytes per second for text such as "100Mbit"; else raise ArgumentTypeError."""
    found = re.fullmatch(r"(\d+\.?\d*) ?([KMG]bit)(/s)?", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(
            f"must be a number with Kbit, Mbit or Gbit, such as 100Mbit, got {text!r}"
        )
    return float(found[1]) * _RATES[found[2]] / 8


def number(text: str) -> int:
    """Return the whole number above 0 of text such as "124M"; else raise ArgumentTypeError."""
    found = re.fullmatch(r"(\d+\.?\d*)([KMGB]?)", text)
    value = round(float(found[1]) * _NUMBERS[found[2]]) if found else 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, such as 500000, 124M or 7B, got {text!r}"
        )
    return value


def seconds(text: str) -> float:
    """Return a number above 0; else raise ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value


def add(commands: Any) -> None:
    """Add the command to the subparsers of `python -m gluon_gc`."""
    parser = commands.add_parser(
        "plan",
        help="predict how much compression would speed up training on this network",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="torchvision:NAME, or a file: .safetensors, .pt or .pth")
    model.add_argument("--parameters", type=number, help="their number, such as 124M")
    parser.add_argument("--rate", type=rate, help="of each machine's link, such as 100Mbit")
    parser.add_argument("--workers", type=int, help="of the job, with --rate")
    parser.add_argument("--per-machine", type=int, default=1, help="workers, with --rate")
    parser.add_argument(
        "--step-seconds", type=seconds, default=0.0, help="of a step of the script with one worker"
    )
    parser.add_argument("--optimizer", choices=_OPTIMIZERS, default="sgd", help="default: sgd")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="draw the steps too (matplotlib)")
    parser.set_defaults(run=partial(_checked, parser))


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        _check(options)
        from .command import run

        return run(options)
    except ValueError as error:
        parser.error(str(error))


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError if options contradict each other."""
    workers, per_machine = options.workers, options.per_machine
    if (options.rate is None) != (workers is None):
        raise ValueError("--rate and --workers belong together: give both, or neither")
    if options.rate is None and per_machine != 1:
        raise ValueError("--per-machine needs --rate and --workers; else the launcher says it")
    if workers is not None and (per_machine < 1 or workers % per_machine or workers <= per_machine):
        raise ValueError(
            "--workers must be a multiple of --per-machine, for at least 2 machines, got "
            f"{workers} and {per_machine}"
        )
    if options.plot and find_spec("matplotlib") is None:
        raise ValueError(f"--plot {options.plot} needs matplotlib, which is not installed")

"""Command-line arguments for the argument `algorithm` of the trainers."""

from __future__ import annotations

import argparse
from typing import Any

from gluon_gc.algorithms import registry


def add_algorithm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --algorithm and an argument for each option of an algorithm."""
    group = parser.add_argument_group(
        "algorithm", "Without --algorithm, gradients are averaged in every step."
    )
    listed = "; ".join(f"{name}: {kind.description}" for name, kind in registry.items())
    group.add_argument("--algorithm", choices=tuple(registry), help=listed)
    for key in _keys():
        group.add_argument(
            _flag(key),
            dest=f"algorithm_{key}",
            type=registry[_users(key)[0]].keys()[key].from_text,
            metavar=key.rpartition("_")[2].upper(),
            help="; ".join(_meaning(name, key) for name in _users(key)),
        )


def _keys() -> dict[str, None]:
    """Return the options of all algorithms, each once."""
    return dict.fromkeys(key for kind in registry.values() for key in kind.keys())


def _users(key: str) -> list[str]:
    """Return the algorithms that have an option."""
    return [name for name, kind in registry.items() if key in kind.keys()]


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _meaning(name: str, key: str) -> str:
    """Return the help for an option of one algorithm."""
    option, default = registry[name].keys()[key], registry[name].defaults().get(key)
    more = "" if default is None else f"; default: {default}"
    return f"{name}: {option.meaning} ({option.allowed}{more})".replace("%", "%%")


def algorithm_of(args: argparse.Namespace) -> dict[str, Any] | None:
    """Turn parsed arguments into the argument `algorithm` of the trainers, which check it.

    Raises
    ------
    ValueError
        An option is given without --algorithm.
    """
    values = {key: getattr(args, f"algorithm_{key}") for key in _keys()}
    options = {key: value for key, value in values.items() if value is not None}
    if args.algorithm:
        return {"name": args.algorithm, **options}
    for key in options:
        raise ValueError(f"{_flag(key)} needs --algorithm")
    return None

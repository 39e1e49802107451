"""Writes reference.md beside it: every key of compression_params and every environment variable."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Iterable, List, Sequence

from gluon_gc import compression, env
from gluon_gc.compression.option import Option

PAGE = Path(__file__).with_name("reference.md")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> List[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _default(variable: env.Variable) -> str:
    if variable.default is env.REQUIRED:
        return "required in a cluster"
    if callable(variable.default):
        return variable.default.__doc__
    if isinstance(variable.default, bool):
        return str(int(variable.default))
    return "" if variable.default is None else str(variable.default)


def _option_default(option: Option) -> str:
    """The default of an option that a compressor has as a field, if it has one."""
    for name in option.compressors or ():
        for field in fields(compression.registry[name]):
            if field.name == option.name and field.default not in (MISSING, None):
                return str(field.default)
    return ""


def _compressors(option: Option) -> str:
    every = option.compressors == tuple(compression.registry)
    return "any compressor" if every else ", ".join(option.compressors or ())


def _names(variable: env.Variable) -> str:
    return f"`{variable.name}`" + (f" (older: `{variable.older}`)" if variable.older else "")


def page() -> str:
    """The text of reference.md."""
    compressors = (
        (f"`{name}`", compressor.description) for name, compressor in compression.registry.items()
    )
    options = (
        (
            f"`{option.name}`",
            option.allowed,
            _option_default(option),
            option.meaning,
            _compressors(option),
        )
        for option in compression.options().values()
    )
    variables = (
        (_names(variable), env.KINDS[variable.kind][0], _default(variable), variable.meaning)
        for variable in env.TABLE
    )
    lines = [
        "# Reference",
        "",
        "Made by `python docs/generate.py` from the tables that the code itself reads.",
        "",
        "## Compressors",
        "",
        *_table(("compressor", "what it sends"), compressors),
        "",
        "## compression_params",
        "",
        'None, False and `""` switch a key off. A wrong type is a TypeError, a wrong value or an',
        "unknown key a ValueError, a missing key a KeyError, when the trainer is made. A key that",
        "is for other compressors is ignored, with a warning.",
        "",
        *_table(("key", "allowed", "default", "meaning", "for"), options),
        "",
        "## Environment variables",
        "",
        "An empty variable counts as one that is not set.",
        "",
        *_table(("variable", "allowed", "default", "meaning"), variables),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())

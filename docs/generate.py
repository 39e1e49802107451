"""Writes reference/keys-and-variables.md: compressors, algorithms, and environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from gluon_gc import algorithms, compression
from gluon_gc.env.variables import KINDS, OF_LAUNCHERS, REQUIRED, TABLE, Variable

PAGE = Path(__file__).with_name("reference") / "keys-and-variables.md"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _rule(allowed: str) -> str:
    """A rule as a table prints it, without its article."""
    return allowed[2:] if allowed.startswith("a ") else allowed


def _default(variable: Variable) -> str:
    if variable.default is REQUIRED:
        return "required"
    if callable(variable.default):
        return variable.default.__doc__
    if isinstance(variable.default, bool):
        return str(int(variable.default))
    return "" if variable.default is None else str(variable.default)


def _default_option(compressor: str, key: str) -> str:
    """The default of a key that is a compressor's own."""
    kind = compression.registry.get(compressor)
    if kind is None or key not in kind.keys():
        return ""
    default = kind.defaults().get(key, "must be given")
    return "" if default is None else str(default)


def _options() -> Iterable[Sequence[str]]:
    """A row for each key of compression_params, or for each meaning that it has."""
    for key in compression.keys():
        meanings: dict[Sequence[str], list[str]] = {}
        for name, option in compression.users_of(key).items():
            meanings.setdefault((option.allowed, option.meaning), []).append(name)
        for (allowed, meaning), names in meanings.items():
            every = names == list(compression.registry)
            users = "all" if every else ", ".join(names)
            yield f"`{key}`", _rule(allowed), _defaults(key, names), meaning, users


def _defaults(key: str, compressors: Sequence[str]) -> str:
    """The default of a key, with the compressors' names if it differs between them."""
    users: dict[str, list[str]] = {}
    for name in compressors:
        users.setdefault(_default_option(name, key), []).append(name)
    if len(users) == 1:
        return "".join(users)
    return "; ".join(f"{', '.join(names)}: {text or 'none'}" for text, names in users.items())


def _options_of_algorithms() -> Iterable[Sequence[str]]:
    """A row for each option of each algorithm."""
    for name, kind in algorithms.registry.items():
        for key, option in kind.keys().items():
            default = str(kind.defaults().get(key, "must be given"))
            yield f"`{name}`", f"`{key}`", _rule(option.allowed), default, option.meaning


def _names(variable: Variable) -> str:
    return f"`{variable.name}`" + (f" (older: `{variable.older}`)" if variable.older else "")


def page() -> str:
    """The text of the page."""
    compressors = (
        (f"`{name}`", compressor.description) for name, compressor in compression.registry.items()
    )
    variables = (
        (_names(variable), _rule(KINDS[variable.kind][0]), _default(variable), variable.meaning)
        for variable in TABLE
    )
    of_launchers: dict[str, list[str]] = {}
    for variable in OF_LAUNCHERS:
        of_launchers.setdefault(variable.meaning, []).append(_names(variable))
    lines = [
        "# Keys and variables",
        "",
        "Made by `python docs/generate.py` from the tables that the code reads.",
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
        *_table(("key", "allowed", "default", "meaning", "for"), _options()),
        "",
        "## Algorithms",
        "",
        'The argument `algorithm` is a name or a dict of "name" and options.',
        "",
        *_table(
            ("algorithm", "description"),
            ((f"`{name}`", kind.description) for name, kind in algorithms.registry.items()),
        ),
        "",
        *_table(("algorithm", "option", "allowed", "default", "meaning"), _options_of_algorithms()),
        "",
        "## Environment variables",
        "",
        "An empty variable counts as not set. A misspelt one that begins with `BYTEPS_` or",
        "`GLUON_GC_` is warned of, with the nearest of these. Required ones are for a",
        "cluster only.",
        "",
        *_table(("variable", "allowed", "default", "meaning"), variables),
        "",
        "Other launchers set these variables to tell a worker its rank and the number of workers.",
        "bpslaunch sets the first six, which are torchrun's. With MXNet, gluon_gc reads them only",
        "to refuse a script that would train alone by mistake.",
        "",
        *_table(
            ("variables", "meaning"),
            ((", ".join(names), meaning) for meaning, names in of_launchers.items()),
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())

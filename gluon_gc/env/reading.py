"""Reads and checks environment variables by the tables in `variables`."""

from __future__ import annotations

import difflib
import os
import re
from typing import Any, Optional

from .variables import IGNORED, KINDS, OF_LAUNCHERS, REQUIRED, TABLE, Variable, cores


class ConfigurationError(ValueError):
    """A variable is missing, breaks its rule, or contradicts another one."""

    __module__ = __package__  # the package from which callers import it


_VARIABLES = {variable.name: variable for variable in (*TABLE, *OF_LAUNCHERS)}


def _text(variable: Variable) -> tuple[str, str]:
    """The current or older name under which a variable is set, and its text, or "" if not set."""
    for name in (variable.name, variable.older):
        text = os.environ.get(name, "").strip() if name else ""
        if text:
            return name, text
    return variable.name, ""


def get(name: str) -> Any:
    """The value of a variable that is in a table, or its default if it is not set.

    Raises ConfigurationError if the value is not allowed, or if the variable is required and not
    set.
    """
    variable = _VARIABLES[name]
    spelling, text = _text(variable)
    if text:
        rule, parse = KINDS[variable.kind]
        try:
            return parse(text)
        except ValueError:
            raise ConfigurationError(f"{spelling} must be {rule}, got {text!r}") from None
    if variable.default is REQUIRED:
        raise ConfigurationError(f"{name} is not set: {variable.meaning}")
    return variable.default() if callable(variable.default) else variable.default


def is_set(name: str) -> bool:
    """Whether a variable of a table is set, by its current or its older name."""
    return bool(_text(_VARIABLES[name])[1])


def shared_settings() -> dict[str, Any]:
    """The values that must be the same on all nodes of a cluster, by name of the variable."""
    return {variable.name: get(variable.name) for variable in TABLE if variable.must_match}


def traced_steps() -> range:
    """The steps that BYTEPS_TRACE_ON records, counted from 1."""
    first, last = get("BYTEPS_TRACE_START_STEP"), get("BYTEPS_TRACE_END_STEP")
    if last < first:
        raise ConfigurationError(
            f"BYTEPS_TRACE_END_STEP must be >= BYTEPS_TRACE_START_STEP ({first}), got {last}"
        )
    return range(first, last + 1)


def server_threads() -> int:
    """The number of threads of a server's update: OMP_NUM_THREADS, or the number of cores."""
    return get("OMP_NUM_THREADS") or cores()


def misspelt() -> dict[str, Optional[str]]:
    """Variables that are set but not read, each with the most similar variable that is read.

    A variable that begins with BYTEPS_ and is similar to none is left out: it may belong to BytePS.
    """
    stems = {_stem(variable.name): variable.name for variable in TABLE}
    known = {*_VARIABLES, *(variable.older for variable in TABLE), *IGNORED}
    nearest: dict[str, Optional[str]] = {}
    for name in sorted(name for name in os.environ if name not in known):
        if name.startswith(("BYTEPS_", "GLUON_GC_")):
            near = [stems[stem] for stem in difflib.get_close_matches(_stem(name), stems, n=1)]
            if near or name.startswith("GLUON_GC_"):
                nearest[name] = near[0] if near else None
    return nearest


def _stem(name: str) -> str:
    """A name without its prefix. With prefixes, all names would be similar."""
    return re.sub("^(BYTEPS|DMLC|GLUON_GC|PS)_", "", name)

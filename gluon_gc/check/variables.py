"""Checks the environment variables that gluon_gc reads."""

from __future__ import annotations

from typing import Iterator

from .. import env
from . import ERROR, GOOD, WARNING, Finding

_SECRETS = ("GLUON_GC_SECRET",)


def findings() -> Iterator[Finding]:
    """Check each variable that the user has set, then whether they fit together."""
    are_valid = True
    for variable, name, text in env.set_by_user():
        try:
            env.get(variable.name)
        except env.ConfigurationError as error:
            are_valid = False
            yield Finding(ERROR, name, str(error), "correct it, or unset it")
        else:
            shown = "it is set" if variable.name in _SECRETS else text
            yield Finding(GOOD, name, f"{shown}: {variable.meaning}")
    for name, nearest in env.misspelt().items():
        remedy = f"did you mean {nearest}?" if nearest else "unset it"
        yield Finding(WARNING, name, "gluon_gc does not read it", remedy)
    for name in env.ignored():
        yield Finding(WARNING, name, "a variable of BytePS that has no effect here", "unset it")
    if are_valid and env.is_set("DMLC_ROLE"):
        yield _role()


def _role() -> Finding:
    """Check whether the variables of a node are complete, and do not contradict each other."""
    try:
        cluster = env.cluster(servers_needed=False)
    except env.ConfigurationError as error:
        return Finding(ERROR, "DMLC_ROLE", str(error), "see docs/tutorials/cluster.md")
    text = f"{cluster.role} of {cluster.total_workers} workers and {cluster.num_server} servers"
    return Finding(GOOD, "DMLC_ROLE", text)

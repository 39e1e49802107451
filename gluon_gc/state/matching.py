"""Matches the parameters of a checkpoint with those of a trainer.

In the errors, "there" is the file and "here" is the trainer.
"""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple, Union

from ..log import logger
from ..options import require_different
from . import fitting
from .fitting import Header

_SAME = ("shape", "dtype")  # keys of a parameter that must be equal


def numbers_of_parameters(
    name: str, there: Sequence[Header], here: Sequence[Header], strict: bool
) -> Dict[int, int]:
    """Map the numbers of parameters in a file to their numbers in the trainer.

    Parameters match by name. If names differ, but all shapes and dtypes are equal, parameters match
    by their order in the network. Gluon numbers the blocks of a process, so names may change.
    This also matches parameters that share a name. Otherwise, if not `strict`, only parameters with
    equal names match.

    Raises
    ------
    ValueError
        The parameters do not match.
    """
    matching, by_name = pairs(there, here)
    if not by_name:
        if any(there[a]["name"] != here[b]["name"] for a, b in matching):
            logger.warning(
                "'%s': its parameters have other names, and are matched by their order", name
            )
    elif not len(matching) == len(there) == len(here):
        _check_names(name, there, here, strict)
    for a, b in matching:
        called = f"{b} ('{there[a]['name']}' there, '{here[b]['name']}' here)"
        has_state = there[a]["compression"] is not None  # a file lacks that of a frozen parameter
        keys = (*_SAME, "compression") if has_state else _SAME
        fitting.check_parameter(name, called, there[a], here[b], keys)
    return dict(matching)


def pairs(there: Sequence[Header], here: Sequence[Header]) -> Tuple[List[Tuple[int, int]], bool]:
    """Pair the numbers of parameters in a file and in the trainer; see `numbers_of_parameters`.

    The second result is whether they match by name.
    """
    numbers = [{p["name"]: number for number, p in enumerate(ps)} for ps in (there, here)]
    by_name = [(numbers[0][key], numbers[1][key]) for key in numbers[0] if key in numbers[1]]
    if not len(by_name) == len(there) == len(here):
        in_order = _pairs_in_order(there, here)
        if len(there) == len(here) and all(
            there[a][key] == here[b][key] for a, b in in_order for key in ("shape", "dtype")
        ):
            return in_order, False
    return by_name, True


def _check_names(name: str, there: Sequence[Header], here: Sequence[Header], strict: bool) -> None:
    """Raise ValueError unless parameters may match by name. Log the names that do not match."""
    if strict:
        fitting.check(name, "number of parameters", len(there), len(here))
    names = [[parameter["name"] for parameter in parameters] for parameters in (there, here)]
    for subject, of_side in zip(("it", "the trainer"), names):
        require_different(of_side, f"'{name}' does not fit, because {subject}")
    if strict:
        fitting.check(name, "set of parameters", *map(sorted, names))
        return
    missing, added = (sorted(set(a).difference(b)) for a, b in (names, names[::-1]))
    logger.warning(
        "'%s': the states of %s are ignored, because the trainer has no such parameters; "
        "the states of %s start from zero, because the file does not have them",
        name,
        missing,
        added,
    )


def _pairs_in_order(there: Sequence[Header], here: Sequence[Header]) -> List[Tuple[int, int]]:
    """Pair the numbers of parameters in a file and in the trainer by their order in the network.

    gluon.Trainer numbers the parameters of a dict in the order of their names as text, in which
    dense10 is before dense9. Older files have no positions, so dense10 is put after dense9.
    """
    if all("position" in parameter for parameter in there):
        orders = [sorted(range(len(ps)), key=lambda i: ps[i]["position"]) for ps in (there, here)]
    else:
        names = [[parameter["name"] for parameter in ps] for ps in (there, here)]
        orders = [list(range(len(of_side))) for of_side in names]
        if all(of_side == sorted(of_side) for of_side in names):
            orders = [sorted(range(len(ns)), key=lambda i: _with_numbers(ns[i])) for ns in names]
    return list(zip(*orders))


def _with_numbers(name: str) -> List[Union[str, int]]:
    """A key that sorts names by the numbers in them."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]

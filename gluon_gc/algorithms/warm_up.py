"""The options of a warm-up, whose length is a number of steps or a share of all steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from ..options import Option, share_or_whole, whole


def length(meaning: str) -> Option:
    """The option for the length of a warm-up."""
    return share_or_whole(f"{meaning}, or a share of total_steps")


def total_steps(key: str) -> Option:
    """The option for the number of all steps. `key` is the option for the length."""
    number = whole(1, f"all steps; needed if {key} is a share")
    return replace(
        number,
        types=(*number.types, type(None)),
        rule=lambda value: value is None or number.rule(value),
    )


def steps_of(name: str, key: str, given: float, total: Optional[int]) -> int:
    """The number of steps of a warm-up.

    Parameters
    ----------
    name : str
        The name of the algorithm.
    key : str
        The option for the length.
    given : float
        The length: a number of steps, or a share of all steps.
    total : int, optional
        The number of all steps.

    Raises
    ------
    KeyError
        The length is a share, and the number of all steps is not given.
    """
    if given >= 1:
        return int(given)
    if total is None:
        raise KeyError(
            f"algorithm['total_steps'] is missing; {name} needs it because '{key}' is {given!r}, a "
            "share of all steps"
        )
    return max(1, round(given * total))

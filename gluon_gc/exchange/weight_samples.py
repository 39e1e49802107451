"""Finds weights that differ between workers, by samples of a few elements.

All workers start with equal weights and apply equal averages. The weights drift apart if an
optimizer draws other random numbers on each worker, or if a script changes weights on one worker.
A check compares a few elements of a few parameters. Later checks sample the other parameters.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

EVERY = 8
"""The steps from one check to the next."""
PARAMETERS, ELEMENTS = 4, 8
"""The parameters in a check, and the elements of each."""
ADVICE = (
    "All workers must change the weights equally: does the optimizer draw random numbers, does a "
    "learning rate differ, or does the script change weights on one worker?"
)
_TOLERANCE = 1e-3  # another kind of device may round an update to another float
_STRIDE = 2654435761  # between the offsets of successive samples, modulo the size of a parameter


class Sample(NamedTuple):
    """The elements from `begin` to `end` of a parameter, which is named by its position."""

    parameter: int
    begin: int
    end: int


def samples(number: int, sizes: Sequence[int]) -> list[Sample]:
    """The samples of check `number`, from 0. Sizes are the same on all workers."""
    first = number * PARAMETERS
    return [sample(i, sizes) for i in range(first, first + min(PARAMETERS, len(sizes)))]


def sample(number: int, sizes: Sequence[int]) -> Sample:
    """The sample with this number; successive ones are of successive parameters."""
    parameter = number % len(sizes)
    elements = min(ELEMENTS, sizes[parameter])
    begin = number * _STRIDE % (sizes[parameter] - elements + 1)
    return Sample(parameter, begin, begin + elements)


def problem(rows: np.ndarray, chosen: Sequence[Sample], names: Sequence[str], call: str) -> str:
    """The text of the error if workers have different weights; "" if they are equal.

    `rows` has the sampled elements of each worker, one sample behind the other. `names` are those
    of all parameters. The samples were taken before the event `call`.
    """
    begin = 0
    for each in chosen:
        end = begin + each.end - each.begin
        worker = first_different(rows[:, begin:end])
        if worker is not None:
            return (
                f"the weights of {names[each.parameter]} differ between worker 0 and worker "
                f"{worker} before {call}: {rows[0, begin:end].tolist()} and "
                f"{rows[worker, begin:end].tolist()} from element {each.begin} on. {ADVICE}"
            )
        begin = end
    return ""


def first_different(rows: np.ndarray) -> int | None:
    """The first worker whose elements differ from those of worker 0, if any."""
    finite = np.nan_to_num(rows, nan=0, posinf=0, neginf=0)
    limit = _TOLERANCE * np.abs(finite).max(initial=0)
    different = np.abs(finite - finite[:1]) > limit
    different |= np.isfinite(rows) != np.isfinite(rows[:1])
    (workers,) = np.nonzero(different.any(axis=1))
    return int(workers[0]) if workers.size else None

"""The algorithms for which "auto" chooses."""

from __future__ import annotations

from typing import Callable, Hashable, Mapping

from ..algorithms import Algorithm
from ..algorithms.local_steps import LocalSteps
from ..algorithms.powersgd import PowerSGD
from ..compression import CompressionParams
from .algorithm import AutomaticAlgorithm
from .local_steps import AutomaticLocalSteps
from .low_rank import AutomaticPowerSGD


def automatic(
    algorithm: Algorithm,
    params: Mapping[Hashable, CompressionParams],
    option_given: bool,
    wait: Callable[[], None],
) -> AutomaticAlgorithm | None:
    """Return "auto" for an algorithm; None if no parameter has the compressor "auto".

    `wait` returns when this worker has done all the computation that it has queued.
    """
    if all(each.accuracy is None for each in params.values()):
        return None
    if isinstance(algorithm, LocalSteps):
        return AutomaticLocalSteps(algorithm, params, option_given, wait=wait)
    kind = AutomaticPowerSGD if isinstance(algorithm, PowerSGD) else AutomaticAlgorithm
    return kind(algorithm, params, option_given)

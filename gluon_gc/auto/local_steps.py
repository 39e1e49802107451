"""Runs "auto" for the algorithm local_steps: counts steps, chooses, and logs the choice."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from .. import env
from ..compression import CompressionParams
from ..compression.auto import PLAIN
from ..log import logger
from ..plan import Tensor
from . import rounds
from .algorithm import AutomaticAlgorithm, Decision
from .choice import Measured, Topology
from .selection import Measure
from .step_clock import StepClock


class AutomaticLocalSteps(AutomaticAlgorithm):
    """Chooses the compressor and H.

    Until the choice, there are no rounds, and the time of a step is measured.
    """

    until_chosen = {"every": sys.maxsize}

    def __init__(self, *given: Any, wait: Callable[[], None]) -> None:
        super().__init__(*given)
        self._clock = StepClock(wait)

    @property
    def chooses_option(self) -> bool:
        """Whether "auto" chooses H: the other accuracies keep it, because H changes accuracy."""
        return "aggressive" in self._accuracies and not self._option_given

    def due(self) -> bool:
        return self.undecided and self._clock.tick()

    @property
    def seconds(self) -> float:
        """The time of a step on this worker."""
        return self._clock.seconds

    def names(self, several: Sequence[CompressionParams]) -> Sequence[str]:
        return rounds.names_of(several)

    def ways(self, params: CompressionParams, name: str) -> Tuple[str, CompressionParams]:
        own = rounds.name_for(params, name)
        return own, rounds.ways(params)[own]

    def choose(
        self,
        tensors: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        topology: Optional[Topology],
        measure: Measure,
        seconds: float,
        says: bool = True,
    ) -> Decision:
        """Choose the compressor and H; `seconds` is the time of a step on the slowest worker."""
        names = self.names([tensor.params for tensor in tensors])
        if topology is None or len(names) == 1:
            return Decision(PLAIN, self._given.every)
        measured = measure(_compressors(tensors))
        settings = (env.get(f"BYTEPS_{limit}_BYTES") for limit in ("PARTITION", "MIN_COMPRESS"))
        of_round = rounds.seconds_of_round(tensors, measured, topology, *settings)
        every = None if self.chooses_option else self._given.every
        least = max(self._given.fragments, self._given.overlap + 1)
        choice = rounds.choose(of_round, seconds, every, least)
        if says:
            logger.warning("%s", self._explained(tensors, measured, seconds, choice))
        return Decision(choice.name, choice.every)

    def _explained(
        self,
        tensors: Sequence[Tensor],
        measured: Measured,
        step_seconds: float,
        choice: rounds.Choice,
    ) -> str:
        """The log line with the choice and its reason."""
        size = sum(tensor.size for tensor in tensors)
        line = (
            f"auto, {self.accuracy}: the link carries {measured.link.bits / 1e6:,.0f} Mbit/s, and "
            f"a local step takes {step_seconds:.3g} s: {choice.name} for {size:,} elements every "
            f"{choice.every} steps; a round should take {choice.seconds:.3g} s, "
            f"{100 * choice.share:.3g} % of the time of these steps"
        )
        if choice.share <= rounds.SHARE:
            return line
        enough = math.ceil(choice.every * choice.share / rounds.SHARE)
        limit = f", but auto chooses at most {rounds.MOST}" if self.chooses_option else ""
        return f"{line}; {100 * rounds.SHARE:.0f} % would need 'every' {enough}{limit}"


def _compressors(tensors: Sequence[Tensor]) -> Dict[str, CompressionParams]:
    """All ways with a compressor, by name."""
    return {
        name: params
        for requested in {tensor.params: None for tensor in tensors}
        for name, params in rounds.ways(requested).items()
        if params.compressor is not None
    }

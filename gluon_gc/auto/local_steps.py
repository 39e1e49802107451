"""Runs "auto" for the algorithm local_steps: counts steps, chooses, and logs the choice."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any, Callable, Dict, Hashable, Mapping, NamedTuple, Optional, Sequence

from .. import env
from ..algorithms import Algorithm
from ..compression import CompressionParams
from ..compression.auto import PLAIN
from ..log import logger
from ..plan import Tensor
from . import rounds
from .choice import Measured, Topology
from .selection import Measure, recalled
from .step_clock import StepClock

_NEVER = sys.maxsize  # the H of an algorithm without rounds


class Decision(NamedTuple):
    """The name of the chosen candidate, and H."""

    name: str
    every: int


class AutomaticLocalSteps:
    """The algorithm and the compression of a trainer, before and after "auto" has chosen them.

    Without "auto", they are as given from the start. With "auto", the first steps are local and
    their time is measured. Then all workers choose together.

    Parameters
    ----------
    algorithm : Algorithm
    params : mapping of CompressionParams
        The requested compression of each parameter, by name or index.
    every_given : bool
        Whether the user has given H. Otherwise "auto" chooses it for the accuracy "aggressive".
        The other accuracies keep the default, because H changes the accuracy, too.
    wait : callable
        See `StepClock`.

    Attributes
    ----------
    automatic : bool
        Whether a parameter has the compressor "auto".
    decision : Decision, optional
        None: there is no choice yet.
    algorithm : Algorithm
        It has no rounds until the choice.
    params : dict of CompressionParams
        The compression of each parameter.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        params: Mapping[Hashable, CompressionParams],
        every_given: bool,
        wait: Callable[[], None],
    ) -> None:
        self._given, self._requested = algorithm, params
        accuracies = {p.accuracy for p in params.values()} - {None}
        self.automatic = bool(accuracies)
        self._accuracy = "/".join(sorted(accuracies))
        self._chooses_every = "aggressive" in accuracies and not every_given
        self._clock = StepClock(wait)
        self.take(None)

    @property
    def undecided(self) -> bool:
        """Whether "auto" still has to choose."""
        return self.automatic and self.decision is None

    def described(self) -> Dict[str, Any]:
        """The name and the options of the algorithm, for logs, checks and checkpoints."""
        options = self.algorithm.described()
        if self.undecided:
            options["every"] = "auto" if self._chooses_every else self._given.every
        return {"name": self.algorithm.name, **options}

    def due(self) -> bool:
        """Count a step, at its start. Return whether the workers must choose now."""
        return self.undecided and self._clock.tick()

    @property
    def step_seconds(self) -> float:
        """The time of a step on this worker."""
        return self._clock.seconds

    def choose(
        self,
        tensors: Sequence[Tensor],
        topology: Optional[Topology],
        measure: Measure,
        step_seconds: float,
        says: bool = True,
    ) -> Decision:
        """Return the best compressor and H. All workers call this together.

        Parameters
        ----------
        tensors : sequence of Tensor
            The vectors of a round, with the requested params.
        topology : Topology, optional
            None if nothing is sent over a network. Then nothing is compressed.
        measure : callable
            See `selection.Measure`.
        step_seconds : float
            The time of a step on the slowest worker.
        says : bool
            Whether to log the choice and its reason.
        """
        names = rounds.names_of([tensor.params for tensor in tensors])
        if topology is None or len(names) == 1:
            return Decision(PLAIN, self._given.every)
        measured = measure(_compressors(tensors))
        settings = (env.get(f"BYTEPS_{limit}_BYTES") for limit in ("PARTITION", "MIN_COMPRESS"))
        seconds = rounds.seconds_of_round(tensors, measured, topology, *settings)
        every = None if self._chooses_every else self._given.every
        least = max(self._given.fragments, self._given.overlap + 1)
        choice = rounds.choose(seconds, step_seconds, every, least)
        if says:
            logger.warning("%s", self._explained(tensors, measured, step_seconds, choice))
        return Decision(choice.name, choice.every)

    def take(self, decision: Optional[Sequence[Any]]) -> None:
        """Use a decision: rank 0's, or a checkpoint's. None: take back the last one."""
        self.decision: Optional[Decision] = None
        self.algorithm = replace(self._given, every=_NEVER) if self.automatic else self._given
        self.params = dict(self._requested)
        if decision is None:
            return
        self.decision = Decision(*decision)
        name, every = self.decision
        self.algorithm = replace(self._given, every=every)
        self.params = {
            key: rounds.ways(params)[rounds.name_for(params, name)]
            for key, params in self._requested.items()
        }

    def recalled(
        self, saved: Mapping[Hashable, Any], algorithm: Optional[Mapping[str, Any]]
    ) -> Optional[Decision]:
        """Return the decision in a checkpoint; None if it has none, or one is made already.

        Parameters
        ----------
        saved : mapping
            The identities of the CompressionParams in the checkpoint, by the key of `params`.
        algorithm : mapping, optional
            The algorithm's name and options in the checkpoint.
        """
        if not self.undecided or not algorithm or algorithm["name"] != self.algorithm.name:
            return None
        automatic = [
            (params, recalled(params, saved[key]))
            for key, params in self._requested.items()
            if params.accuracy is not None and saved.get(key) is not None
        ]
        if not automatic:
            return None
        every = algorithm["every"] if self._chooses_every else self._given.every
        for name in rounds.names_of([params for params, _ in automatic]):
            if all(found == rounds.name_for(params, name) for params, found in automatic):
                return Decision(name, every)
        return None

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
            f"auto, {self._accuracy}: the link carries {measured.link.bits / 1e6:,.0f} Mbit/s, and "
            f"a local step takes {step_seconds:.3g} s: {choice.name} for {size:,} elements every "
            f"{choice.every} steps; a round should take {choice.seconds:.3g} s, "
            f"{100 * choice.share:.3g} % of the time of these steps"
        )
        if choice.share <= rounds.SHARE:
            return line
        enough = math.ceil(choice.every * choice.share / rounds.SHARE)
        limit = f", but auto chooses at most {rounds.MOST}" if self._chooses_every else ""
        return f"{line}; {100 * rounds.SHARE:.0f} % would need 'every' {enough}{limit}"


def _compressors(tensors: Sequence[Tensor]) -> Dict[str, CompressionParams]:
    """All ways with a compressor, by name."""
    return {
        name: params
        for requested in {tensor.params: None for tensor in tensors}
        for name, params in rounds.ways(requested).items()
        if params.compressor is not None
    }

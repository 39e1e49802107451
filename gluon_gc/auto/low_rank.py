"""Runs "auto" for the algorithm powersgd: chooses whether gradients are compressed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Mapping, Sequence

from .. import env
from ..algorithms.powersgd import PowerSGD
from ..compression import CompressionParams, candidates
from ..compression.auto import FP16, PLAIN
from ..exchange.plan import Tensor
from ..log import logger
from . import speed
from .algorithm import AutomaticAlgorithm, Decision
from .choice import Measured, Topology, cost_of, fastest, gains_enough
from .probe import Workers

LOW_RANK = "powersgd"
"""The name of the candidate that sends factors in float16."""


def factors(
    algorithm: PowerSGD, shapes: Mapping[str, Sequence[int]]
) -> tuple[list[tuple[str, int]], int]:
    """The factors of gradients, and the number of rounds that send them.

    A factor is the name of its gradient and its number of elements. Gradients that travel whole
    count as a factor.
    """
    rounds = replace(algorithm, start=0).rounds({n: tuple(s) for n, s in shapes.items()}).values()
    sizes = [(name, math.prod(shape)) for each in rounds for name, shape in each.items()]
    return sizes, len(rounds)


class AutomaticPowerSGD(AutomaticAlgorithm):
    """Chooses in the first step: whole gradients, in float32 or float16, or factors in float16.

    A decision with rank 0 stands for whole gradients.
    """

    until_chosen = {"rank": 0, "start": 0}
    chooses_option = True

    @property
    def seconds(self) -> float:
        """The time of all products for one element of a matrix, on this worker."""
        return speed.of_low_rank(self._given.rank)

    def names(self, several: Sequence[CompressionParams]) -> Sequence[str]:
        return [PLAIN, FP16]

    def own_candidate(self, params: CompressionParams, name: str) -> tuple[str, CompressionParams]:
        return (name, candidates(params)[name]) if params.accuracy else ("", params)

    def choose(
        self,
        tensors: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        workers: Workers,
        seconds: float,
    ) -> Decision:
        if workers.topology is None:
            return Decision(PLAIN, 0)
        measured, topology = workers.measured({}), workers.topology
        sizes, rounds = factors(self._given, {t.name: s for t, s in zip(tensors, shapes)})
        of_tensor = {tensor.name: tensor for tensor in tensors}
        sent = [replace(of_tensor[name], size=size) for name, size in sizes]
        costs = {
            PLAIN: self._seconds(tensors, PLAIN, measured, topology),
            FP16: self._seconds(tensors, FP16, measured, topology),
            LOW_RANK: self._seconds(sent, FP16, measured, topology)
            + (rounds - 1) * measured.link.float16.message
            + seconds * sum(tensor.size for tensor in tensors),
        }
        name = fastest(costs)
        if not gains_enough(costs[name], costs[PLAIN]):
            name = PLAIN
        if workers.logs:
            logger.warning("%s", self._explained(name, costs, measured))
        rank = self._given.rank if name == LOW_RANK else 0
        return Decision(PLAIN if name == PLAIN else FP16, rank)

    def _seconds(
        self, tensors: Sequence[Tensor], name: str, measured: Measured, topology: Topology
    ) -> float:
        partition_bytes = env.get("BYTEPS_PARTITION_BYTES")
        return sum(
            cost_of(
                tensor,
                *self.own_candidate(tensor.params, name),
                measured,
                topology,
                partition_bytes,
            ).seconds
            for tensor in tensors
        )

    def _explained(self, name: str, costs: dict[str, float], measured: Measured) -> str:
        took = ", ".join(f"{each} {cost:.3g} s" for each, cost in costs.items())
        return (
            f"auto, {self.accuracy}: the link carries {measured.link.bits / 1e6:,.0f} Mbit/s; an "
            f"exchange of all gradients should take {took}: {name}"
        )

"""The state of an algorithm for the parameters of an optimizer, and its steps."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ..algorithms import Algorithm
from ..algorithms.driver import Driver
from ..compression.params import keys_that_are_on
from ..options import checked_epoch
from . import algorithm_saving, closing, stats
from .optimizer_hooks import require_averaged
from .rounds import Rounds
from .settings import chosen_params, facts_of, named

Overrides = Mapping[str, Optional[Mapping[str, Any]]]


class AlgorithmState:
    """The state of an algorithm for the parameters of an optimizer, and its rounds.

    Parameters
    ----------
    named_parameters : iterable of (str, Parameter)
    algorithm : Algorithm
    compression_params : dict, optional
        How vectors are compressed.
    optimizer : Optimizer
    process_group : ProcessGroup, optional
    overrides : mapping, optional

    Attributes
    ----------
    parameters : dict of Parameter
        By name.
    options : dict
        The algorithm's, with its "name".
    driver : Driver
    rounds : Rounds
    optimizer : Optimizer
    """

    def __init__(
        self,
        named_parameters: Any,
        algorithm: Algorithm,
        compression_params: Optional[Mapping[str, Any]],
        optimizer: Optimizer,
        process_group: Optional[dist.ProcessGroup] = None,
        overrides: Optional[Overrides] = None,
    ) -> None:
        self.parameters, _ = named(named_parameters)
        for name, parameter in self.parameters.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise TypeError(
                    f"algorithm {algorithm.name} needs parameters of float32 or float64, but "
                    f"{name} is of {parameter.dtype}; torch.autocast computes in 16 bits with such"
                )
        for params in (compression_params, *(overrides or {}).values()):
            _require_for_rounds(params, algorithm.name)
        self.params, _ = chosen_params(self.parameters, compression_params, overrides)
        self.algorithm, self.optimizer = algorithm, optimizer
        options = algorithm.described()
        self.options = {"name": algorithm.name, **options}
        about = [("", {"algorithm": algorithm.name}), ("the algorithm", options)]
        ways = self.parameters, self.params, process_group
        self.rounds = Rounds(about, *ways, step=lambda: self.driver.steps)
        self.driver = Driver(algorithm, self.rounds)
        self.driver.declare()
        self._agreed, self._stats_from = False, 0
        self._known = set(self.parameters.values())
        closing.opened(self)

    @property
    def steps(self) -> int:
        """How many were made."""
        return self.driver.steps

    def step(self, update: Callable[[], None]) -> None:
        """Make a step, in which the algorithm calls `update`; all workers call this."""
        self.rounds.require_open()
        require_averaged(self.optimizer, self._known)
        if not self._agreed:
            self._agree()
        self.driver.step(update)

    def _agree(self) -> None:
        """RuntimeError, on all workers, unless they can begin together."""
        meeting = self.rounds.meeting
        meeting.agree(facts_of(self.optimizer, None), "begin the first step")
        if self.algorithm.shared and not self.steps:
            own = {n: algorithm_saving.digest(t) for n, t in self.rounds.parameters().items()}
            everybody = meeting.gather_objects(own, "begin the first step")
            for rank, digests in enumerate(everybody):
                differing = [name for name in own if digests[name] != everybody[0][name]]
                if differing:
                    raise RuntimeError(
                        f"worker {rank} begins with other values of parameter {differing[0]} than "
                        f"worker 0, but algorithm {self.algorithm.name} begins from the same: call "
                        "bps.broadcast_parameters(model.state_dict(), root_rank=0) first"
                    )
        self._agreed = True

    def set_epoch(self, epoch: int) -> None:
        """Tell compressors with a warm-up which epoch it is, counted from 0; on all workers."""
        for exchange in self.rounds.exchanges.values():
            exchange.set_epoch(checked_epoch(epoch))

    def compression_stats(self, reset: bool = False) -> Dict[str, Any]:
        """Bytes and seconds of a step, on average over steps with and without rounds.

        The keys are those of `CompressionState.compression_stats`, and "rounds": how many there
        were of each kind. With `reset`, the next averages are of later steps alone.
        """
        steps = self.steps - self._stats_from
        exchanges = self.rounds.exchanges
        found = stats.of_step(exchanges.values(), self.parameters, reset, max(1, steps))
        found["rounds"] = {kind: self.rounds.counts[kind] for kind in exchanges}
        if reset:
            self._stats_from = self.steps
            self.rounds.counts.clear()
        return found

    def state_dict(self) -> Dict[str, Any]:
        """This worker's checkpoint; each worker saves its own.

        It has the algorithm's state, the residuals of its rounds, the optimizer's state and this
        worker's parameters: plain values and tensors, which `torch.load(weights_only=True)` reads.
        If a parameter equals a tensor of the state, both are one tensor, which is saved once.
        """
        return algorithm_saving.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned on this worker; all workers call this.

        Parameters and the optimizer's state are overwritten.

        Raises
        ------
        ValueError
            It does not fit; nothing was changed.
        RuntimeError
            It does not fit on another worker, or is of another step there; nothing was changed.
        """
        self.rounds.require_open()
        algorithm_saving.load(self, state_dict)
        self._stats_from = self.steps

    def close(self) -> None:
        """End the threads; no step can be made afterwards."""
        self.rounds.close()


def _require_for_rounds(params: Optional[Mapping[str, Any]], algorithm: str) -> None:
    """ValueError if compression_params have a key that only averaged gradients have."""
    on = keys_that_are_on(params) if isinstance(params, Mapping) else {}
    if "momentum" in on:
        raise ValueError(
            "compression_params['momentum'] is for gradients that are averaged; with algorithm "
            f"{algorithm} leave it out: the optimizer applies its own momentum"
        )
    if on.get("compressor") == "auto":
        raise ValueError(
            "compression_params['compressor'] 'auto' chooses for gradients that are averaged in "
            f"every step; with algorithm {algorithm} name a compressor"
        )

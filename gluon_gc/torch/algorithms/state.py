"""AlgorithmState: the state and the steps of an algorithm for one optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Sequence

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ... import mailbox
from ...algorithms import Algorithm
from ...algorithms.driver import Driver
from ...algorithms.requirements import first_values, require_fitting_compression, require_floats
from ...auto.algorithm import Decision
from ...auto.algorithms import automatic as automatic_of
from ...compression import CompressionParams
from ...exchange import statistics
from ...exchange.agreement import Facts
from ...exchange.exchange import Lane
from ...exchange.job import Announced
from ...log import logger
from ...mailbox.driver import MailboxDriver
from ...options import checked_epoch
from .. import automatic, closing
from ..gradients.optimizer_hooks import require_averaged
from ..gradients.settings import checked_overrides, chosen_params, facts_of, named
from ..state import algorithms as algorithm_saving
from ..transport import gpu
from ..transport.staging import is_sharded, sizes_of
from .adam import WrappedAdam, require_adam, require_settings
from .rounds import Rounds, is_frozen

if TYPE_CHECKING:
    from ..reports import AlgorithmReporter

Overrides = Mapping[str, Optional[Mapping[str, Any]]]


class AlgorithmState:
    """The state of an algorithm for the parameters of an optimizer, and its rounds.

    compression_params are those of the vectors that are averaged. With "auto", the workers choose
    after the first steps. on_nonfinite="skip" is for algorithms that average gradients: all workers
    leave out a step in which a gradient of one has a NaN or an infinity. "raise": one in a round is
    an error. `option_given`: see `AutomaticAlgorithm`.
    """

    def __init__(
        self,
        named_parameters: Any,
        algorithm: Algorithm,
        option_given: bool,
        compression_params: Mapping[str, Any] | None,
        optimizer: Optimizer,
        process_group: dist.ProcessGroup | None = None,
        overrides: Overrides | None = None,
        on_nonfinite: str = "raise",
        inner_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.parameters, _, self.aliases = named(named_parameters)  # as of CompressionState
        for name, parameter in self.parameters.items():
            require_floats(algorithm.name, name, str(parameter.dtype).rpartition(".")[2])
        if algorithm.needs_adam:
            require_adam(algorithm.name, optimizer, self.parameters)
        own = checked_overrides(overrides).values()
        require_fitting_compression(algorithm, compression_params, *own)
        requested, _ = chosen_params(
            self.parameters, compression_params, overrides, aliases=self.aliases
        )
        self.automatic = automatic_of(algorithm, requested, option_given, self._wait)
        self._given, self._requested = algorithm, requested
        self.optimizer, self._groups = optimizer, (process_group, inner_group)
        self._on_nonfinite = on_nonfinite
        self.rounds = Rounds(
            self._about(),
            self.parameters,
            self.params,
            self._groups,
            lambda: self.driver.steps,
            self._measure,
        )
        self.driver = self._new_driver()
        self.driver.declare()
        self._agreed, self._stats_from, self.is_closed = False, 0, False
        self._known = set(self.parameters.values())
        self._versions: int | None = None  # see `_count_versions`
        self._warned_of_changes = False
        self.reporter: AlgorithmReporter | None = None  # of `bps.report`
        closing.opened(self)

    def _new_driver(self) -> Driver:
        """Return a driver. If there is a mailbox, it has joined its run."""
        run = mailbox.current()
        if run is None:
            return Driver(self.algorithm, self.rounds)
        if self._is_sharded:
            run = run.of_shard(_shard_of(self.parameters), dist.get_world_size())
        driver = MailboxDriver(self._given, self.rounds, run, self._requested)
        driver.begin()
        return driver

    @property
    def _is_sharded(self) -> bool:
        """Whether the parameters are shards, as of fully_shard."""
        return any(is_sharded(parameter) for parameter in self.parameters.values())

    @property
    def of_rounds(self) -> Rounds | MailboxDriver:
        """The rounds, of the workers or of the mailbox."""
        return self.driver if isinstance(self.driver, MailboxDriver) else self.rounds

    @property
    def algorithm(self) -> Algorithm:
        """It has no rounds while "auto" has not chosen."""
        return self._given if self.automatic is None else self.automatic.algorithm

    @property
    def params(self) -> dict[str, CompressionParams]:
        return self._requested if self.automatic is None else self.automatic.params

    @property
    def options(self) -> dict[str, Any]:
        """The options of the algorithm, and its "name"."""
        if self.automatic is None:
            return {"name": self._given.name, **self._given.described()}
        return self.automatic.described()

    @property
    def steps(self) -> int:
        return self.driver.steps

    def require_usable(self) -> None:
        """Raise a RuntimeError if this is closed."""
        self.rounds.exchange.require_open()

    def step(self, update: Callable[[], None], overflows: bool | None = None) -> bool:
        """Make a step, in which the algorithm may call `update`. All workers call this.

        `overflows`: if the algorithm averages gradients, or there is a mailbox, whether this
        worker's GradScaler has found an infinity; None without a scaler. If one has, all workers
        leave the step out, and the result is False; with a mailbox, the step has no weight.
        """
        self.require_usable()
        require_averaged(self.optimizer, self._known)
        _require_unfrozen(self.algorithm, self.parameters)
        self._warn_of_changes()
        if self.algorithm.needs_adam:
            require_settings(self.algorithm.name, self.optimizer)
        averages = self.algorithm.averages_gradients
        if not self._agreed:
            settings = {"GradScaler": overflows is not None, "on_nonfinite": self._on_nonfinite}
            self._agree([("", settings)] if averages else [])
        if self.automatic is not None and self.automatic.due():  # on all workers together
            tensors = self.rounds.tensors()
            shapes = [tuple(self.parameters[tensor.name].shape) for tensor in tensors]
            self.take(automatic.decided(self.automatic, tensors, shapes, self._groups))
        if self.reporter is not None:
            self.reporter.begin()
        made = True
        if averages:
            made = self._step_of_all(update, overflows)
        else:
            if isinstance(self.driver, MailboxDriver):
                self.driver.skips = bool(overflows)
            self.driver.step(update)
        if self.reporter is not None:
            self.reporter.end()
        self._versions = self._count_versions()
        return made

    def _warn_of_changes(self) -> None:
        """Warn once if the script has changed parameters since the last step in vain."""
        versions, self._versions = self._versions, None
        if versions is not None and versions != self._count_versions():
            self._warned_of_changes = True
            logger.warning(
                "algorithm %s undoes changes of the parameters between two averages, such as those "
                "that the script has made before step %d: see docs/guides/adam.md",
                self.algorithm.name,
                self.steps + 1,
            )

    def _count_versions(self) -> int | None:
        """Return a number that changes with the parameters; None if no change would be undone."""
        if self._warned_of_changes or self.algorithm.keeps_changes(self.steps + 1):
            return None
        return sum(parameter._version for parameter in self.parameters.values())

    def _step_of_all(self, update: Callable[[], None], overflows: bool | None) -> bool:
        """Make a step of an algorithm that averages gradients; see `step`."""
        if overflows is not None:
            flags = self.rounds.exchange.members.gather_numbers(
                [int(overflows)], "compare loss scales"
            )
            if any(flag for (flag,) in flags):
                return False
        elif self._on_nonfinite == "skip" and self._finds_nonfinite():
            return False
        _fill_gradients(self.algorithm.name, self.parameters)
        needs_adam = self.algorithm.needs_adam
        self.driver.step(
            update, WrappedAdam(self.optimizer, self.parameters) if needs_adam else None
        )
        return True

    def _finds_nonfinite(self) -> bool:
        """Return whether a gradient of any worker has a NaN or an infinity, and log its name."""
        mine = _first_nonfinite(self.parameters.values())
        numbers = self.rounds.exchange.members.gather_numbers([mine], "compare gradients")
        found = max(number for (number,) in numbers)
        if found < 0:
            return False
        logger.warning(
            "step %d is skipped: the gradient of parameter %s has a NaN or an infinity",
            self.steps + 1,
            list(self.parameters)[found],
        )
        return True

    def take(self, decision: Decision | None) -> None:
        """Use a decision of "auto"; None: take back the last one.

        All workers call this together, before the first round.
        """
        self.automatic.take(decision)
        self.rounds.renew(self._about(), self.params)
        self.driver.use(self.algorithm)
        self.driver.declare()

    def _measure(
        self, lane: Lane, vectors: Mapping[str, torch.Tensor], announced: Announced | None
    ) -> Callable[[], None] | None:
        """See `ExchangeReporter.measure`."""
        if self.reporter is None:
            return None
        return self.reporter.measure(lane, vectors, 1.0, announced)

    def _about(self) -> Facts:
        """Facts that must be the same on all workers."""
        options = self.options
        return [("", {"algorithm": options.pop("name")}), ("the algorithm", options)]

    def _wait(self) -> None:
        """Wait for the computation that is queued on the parameters' devices."""
        for device in {parameter.device for parameter in self.parameters.values()}:
            gpu.wait(device)

    def _agree(self, about: Facts) -> None:
        """Raise a RuntimeError on all workers unless they can begin together."""
        facts = [*about, *facts_of(self.optimizer, None)]
        has_rounds = not isinstance(self.driver, MailboxDriver)  # else other sites have them
        if has_rounds:
            facts += _shards_of(self.parameters)
        if not self.steps and (has_rounds or not self._is_sharded):
            parameters = self.rounds.parameters().items()
            arrays = ((name, tensor.cpu().numpy()) for name, tensor in parameters)
            facts += first_values(self.algorithm, arrays)
        self.rounds.exchange.agree(facts, "begin the first step")
        self._agreed = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, for compressors with a warm-up. All workers call this.

        `compression_stats` then averages over later steps only.
        """
        self.driver.finish()
        self.of_rounds.set_epoch(checked_epoch(epoch))
        self._begin_stats()

    def compression_stats(self, reset: bool = False) -> dict[str, Any]:
        """Return the average bytes and seconds of a step, over steps with and without rounds.

        The keys are those of `CompressionState.compression_stats`, and "rounds": the number of
        rounds of each kind; with a mailbox, of those that count this worker. With `reset`, the next
        call only averages over later steps.
        """
        steps = self.steps - self._stats_from
        of_rounds, sizes = self.of_rounds, sizes_of(self.parameters)
        found = statistics.of_step(of_rounds.transfers, sizes, reset, max(1, steps))
        found["rounds"] = {kind: of_rounds.counts[kind] for kind in of_rounds.kinds}
        if reset:
            self._begin_stats()
        return found

    def _begin_stats(self) -> None:
        self._stats_from = self.steps
        self.of_rounds.counts.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's checkpoint. Each worker saves its own.

        It contains the algorithm's state, the residuals of its rounds, the optimizer's state and
        this worker's parameters. It has only plain values and tensors, so that
        ``torch.load(weights_only=True)`` reads it.
        """
        return algorithm_saving.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from the `state_dict` of this worker. All workers call this.

        Parameters and the optimizer's state are overwritten. If the number of workers has changed,
        pass the state_dicts of all former workers: residuals are then summed over them and divided
        equally, with a warning. With n former workers, rank r gets the parameters and the
        optimizer's state of former rank r modulo n. If a state_dict does not fit, an error is
        raised on all workers, and nothing has changed.
        """
        self.rounds.exchange.require_open()
        self.driver.require_loadable()
        self.driver.finish()
        algorithm_saving.load(self, state_dict)
        self._stats_from, self._versions = self.steps, None

    def close(self) -> None:
        """Stop the threads. No step can be made afterwards."""
        self.is_closed = True
        if self.reporter is not None:
            self.reporter.close()
        self.rounds.exchange.close()


def _shards_of(parameters: Mapping[str, torch.nn.Parameter]) -> Facts:
    """Return the shards that this worker has: only equal ones can be averaged."""
    facts = []
    for name, parameter in parameters.items():
        if is_sharded(parameter):
            coordinate = zip(parameter.device_mesh.get_coordinate(), parameter.placements)
            numbers = [number for number, p in coordinate if not p.is_replicate()]
            facts.append((f"parameter {name}", {"shard": numbers}))
    return facts


def _require_unfrozen(algorithm: Algorithm, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if not (parameter.requires_grad or algorithm.allows_freezing):
            raise RuntimeError(
                f"parameter {name} was frozen after DistributedOptimizer was made, but algorithm "
                f"{algorithm.name} would still change it: unfreeze it, or make a new optimizer"
            )


def _fill_gradients(name: str, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Set missing gradients to zeros, except of frozen parameters; ValueError if one is sparse."""
    for parameter_name, parameter in parameters.items():
        if is_frozen(parameter):
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout is not torch.strided:
            raise ValueError(
                f"algorithm {name} needs dense gradients, but the gradient of parameter "
                f"{parameter_name} is sparse"
            )


def _is_finite(gradient: torch.Tensor) -> torch.Tensor:
    """Return whether a gradient is finite, on all workers that have shards of it; shape ()."""
    finite = gradient.isfinite().all()
    return finite.full_tensor() if is_sharded(finite) else finite


def _first_nonfinite(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return the number of the first parameter whose gradient has a NaN or an infinity, or -1."""
    gradients = [(i, p.grad) for i, p in enumerate(parameters) if p.grad is not None]
    if not gradients:
        return -1
    device = gradients[0][1].device
    finite = torch.stack([_is_finite(gradient).to(device) for _, gradient in gradients])
    return next((i for (i, _), good in zip(gradients, finite.tolist()) if not good), -1)


def _shard_of(parameters: Mapping[str, torch.Tensor]) -> int:
    """Return the number of this worker's shard, if each worker of its site has one.

    Otherwise, workers with the same parameters would have rounds of their own, and drift apart.
    """
    for name, parameter in parameters.items():
        mesh = parameter.device_mesh if is_sharded(parameter) else None
        whole = mesh is not None and mesh.ndim == 1 and mesh.size() == dist.get_world_size()
        if not whole or not parameter.placements[0].is_shard():
            found = "no mesh" if mesh is None else f"{parameter.placements} on {mesh}"
            raise ValueError(
                "with a mailbox, each worker of a site must have its own part of all parameters, "
                f"as with fully_shard, but parameter {name} has {found}"
            )
    return mesh.get_local_rank()

"""Runs an algorithm whose rounds go through a mailbox, for a front end of any framework.

What a worker has changed, and no round has counted yet, is in one of these:

- in its parameters: the difference between the anchor and the parameter, less `_Lane.counted`,
  which a round has counted already;
- in the residuals of its compressors;
- in `_Lane.uncounted`: differences that were in the parameters.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from ..algorithms.base import Algorithm, Round, Shapes
from ..algorithms.base import Arrays as OfFramework
from ..algorithms.driver import Driver, FrontEnd, is_declared, undeclared
from ..compression import CompressionParams
from ..exchange.plan import Tensor
from .packing import Arrays, Packing
from .participant import Contribution, Outcome, Participant, State
from .run import Run
from .signals import Signals, exit_if_told

_POLL = 0.1  # seconds between two looks at whether a round is hindered
_ATTEMPTS = 3  # of a worker that leaves to put its last payload before a result
_IN_STORE = (
    "the state of a run with a mailbox is in its store, where a worker that starts again finds it: "
    "save only the model's parameters, as without gluon_gc"
)


class MailboxDriver(Driver):
    """A driver whose rounds go through the mailbox of a run.

    In a site of several workers, only the first one has to do with the mailbox. The others get from
    it what it learns.
    """

    abandon = None  # a round may fail on one worker alone

    def __init__(
        self,
        algorithm: Algorithm,
        front_end: FrontEnd,
        run: Run,
        params: Mapping[str, CompressionParams],
    ) -> None:
        super().__init__(algorithm, front_end)
        self._mailbox, self._params = run, params
        self._rounds: dict[str, Shapes] = {}  # by the kind of round
        self._lanes: dict[str, _Lane] = {}  # by the kind of round; none but in the first worker
        self._has_joined = False
        self._epoch: int | None = None
        self._signals = Signals()
        self.counts: Counter[str] = Counter()  # of the rounds of each kind that count this site
        self.samples = 0.0  # of all steps
        self.samples_per_step = run.samples_per_step
        self.skips = False  # whether the next step leaves its update out, so that it has no weight

    @staticmethod
    def require_possible(algorithm: Algorithm) -> None:
        if not algorithm.allows_absence:
            raise ValueError(
                f"algorithm must be 'local_steps' with a mailbox, got '{algorithm.name}', in which "
                "all workers take part in every round"
            )
        start = algorithm.described().get("start")
        if start:
            raise ValueError(
                f"algorithm['start'] must be 0 with a mailbox, got {start}: workers need not begin "
                "together"
            )

    @property
    def kinds(self) -> list[str]:
        return list(self._rounds)

    @property
    def transfers(self) -> list[Participant]:
        """What measures bytes and seconds, for statistics."""
        return [lane.participant for lane in self._lanes.values()]

    def declare(self) -> None:
        """Do nothing: `begin` prepares the rounds."""

    def begin(self) -> None:
        """Join the run, at the first call only: the parameters become those of the run."""
        if self._has_joined:
            return
        parameters = self._front_end.parameters()
        shapes = {name: tuple(array.shape) for name, array in parameters.items()}
        self._rounds = dict(self.algorithm.rounds(shapes))
        self.state = self.algorithm.begin(parameters)
        own = dict(self.state["anchor"])  # joining replaces the arrays
        dtypes = {n: self._numpy(array).dtype.name for n, array in parameters.items()}
        self._mailbox.join(self.algorithm, self._params, shapes, dtypes)
        for kind, of_kind in self._rounds.items():
            if self._mailbox.is_first:
                tensors = self._tensors(kind, of_kind, dtypes)
                participant = self._mailbox.participant(kind, Packing(tensors))
                self._lanes[kind] = _Lane(participant, self._epoch)
            for outcome in self._outcomes(kind, partial(self._join, kind), float("inf")):
                self._apply(kind, outcome, answers=False)
            for name in of_kind:
                parameters[name][:] = self.state["anchor"][name]
                self.has_moved |= not self._equal(own[name], parameters[name])
        self._has_joined = True
        self._mailbox.joined(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, for compressors with a warm-up, from the next round on."""
        self._epoch = epoch
        for lane in self._lanes.values():
            lane.epoch = epoch

    def _join(self, kind: str) -> Outcome:
        return self._lanes[kind].participant.join(self._state_of(kind))

    def _tensors(self, kind: str, shapes: Shapes, dtypes: Mapping[str, str]) -> list[Tensor]:
        return [
            Tensor(
                name,
                int(np.prod(shape)),
                dtypes[name],
                self._params[name],
                index,
                f"the {kind} of parameter {name}",
            )
            for index, (name, shape) in enumerate(shapes.items())
        ]

    def step(self, update: Callable[[], None], adam: Any = None) -> None:
        exit_if_told()
        self.begin()
        if not self.steps:
            self._require_anchors()
        steps, updated = self.steps, False

        def counted() -> None:
            nonlocal updated
            update()
            updated = True
            self.samples += 0 if self.skips else self.samples_per_step

        try:
            super().step(counted, adam)
        finally:
            self._signals.release()
            if not updated:
                self.steps = steps
        self.has_moved = False

    def _require_anchors(self) -> None:
        """Before the first step, raise RuntimeError if the parameters are not those of the run."""
        for name, parameter in self._front_end.parameters().items():
            if not self._equal(parameter, self.state["anchor"][name]):
                raise RuntimeError(
                    f"parameter {name} has changed since this worker joined the run: load a model "
                    "before DistributedOptimizer or DistributedTrainer joins"
                )

    def _equal(self, array: Any, other: Any) -> bool:
        return np.array_equal(self._numpy(array), self._numpy(other), equal_nan=True)

    def now(self) -> float:
        if self.algorithm.in_lockstep:
            return super().now()
        # The workers of a site begin a round in the same step.
        return self._mailbox.now()

    def start(self, request: Round) -> Callable[[], OfFramework]:
        if not is_declared(request, self._rounds):
            raise undeclared(request, self.steps)
        self._signals.release()  # the algorithm has applied the last average
        kind, lane = request.kind, self._lanes.get(request.kind)
        # An attempt that could not go on in time has ended since then.
        has_restarted, began = False, self.now()
        for earlier in self._outcomes(kind, lambda: lane.finished(), self._mailbox.grace):
            self._apply(kind, earlier, answers=False)
            has_restarted = bool(earlier.nonfinite)
        self._zero += self.now() - began
        contributes = lane is not None and lane.is_idle and not has_restarted
        if contributes:
            differences = {n: self._numpy(vector) for n, vector in request.vectors.items()}
            state = self._state_of(kind) if lane.participant.saves else None
            lane.contribute(differences, self.samples, self._about(), state)
        return partial(self._answer_of, kind, contributes)

    def _answer_of(self, kind: str, contributes: bool) -> OfFramework:
        """Wait for the round that this worker takes part in. {} if it cannot go on now.

        `contributes`: whether the first worker of the site has contributed what was requested. An
        earlier attempt lacks the steps since then, so it must not be the answer.
        """
        self._signals.release()
        began, lane = self.now(), self._lanes.get(kind)

        def awaited() -> Outcome | None:
            if not contributes:
                return None
            return lane.awaited(self._mailbox.grace, self._mailbox.hindered_seconds)

        last: OfFramework = {}
        for outcome in self._outcomes(kind, awaited, self._mailbox.grace):
            last = self._apply(kind, outcome, answers=True)
        self._zero += self.now() - began
        return last

    def _outcomes(
        self, kind: str, first: Callable[[], Outcome | None], grace: float
    ) -> Iterator[Outcome]:
        """What the first worker of the site learns. Each outcome is applied before the next one."""
        outcome = self._mailbox.share(first)
        while outcome is not None:
            yield outcome
            if outcome.is_last:
                return
            outcome = self._mailbox.share(
                lambda: self._lanes[kind].awaited(grace, self._mailbox.hindered_seconds)
            )

    def _apply(self, kind: str, outcome: Outcome, answers: bool) -> OfFramework:
        """Apply what was learnt. Return the average if the algorithm waits for it, or {}."""
        last: OfFramework = {}
        self._signals.hold()  # until the algorithm has applied the last average
        try:
            last = self._applied(kind, outcome, answers)
        finally:
            if not last:
                self._signals.release()
        return last

    def _applied(self, kind: str, outcome: Outcome, answers: bool) -> OfFramework:
        parameters = self._front_end.parameters()
        if outcome.state is not None:
            for name in self._rounds[kind]:
                before = self.state["anchor"][name]
                for shared in self.algorithm.shared:
                    values = outcome.state[shared][name]
                    self.state[shared][name] = self._like(values, parameters[name])
                parameters[name][:] = parameters[name] + (self.state["anchor"][name] - before)
        average = self._of_framework(parameters, outcome.mean)
        last = average if answers and outcome.arrived and not outcome.nonfinite else {}
        if average and not last:
            self.algorithm.missed(average, parameters, self.state)
        self.counts[kind] += outcome.counted
        lane = self._lanes.get(kind)
        if lane is not None:
            lane.settle(outcome, restarted=bool(last))
        if outcome.nonfinite:  # all kinds: others may have a NaN from this one
            for name, anchor in self.state["anchor"].items():
                parameters[name][:] = anchor
            for each in self._lanes.values():
                each.restart()
        return last

    def leave(self) -> None:
        """Put what no round has counted of this worker, and leave the run.

        The store must have stopped, so that each round under way ends where it would wait.
        """
        parameters = self._front_end.parameters()
        for kind, lane in self._lanes.items():
            if not lane.is_idle:
                self._apply(kind, lane.last_outcome(), answers=False)
        for kind, lane in self._lanes.items():
            lane.leave(
                {
                    name: self._numpy(self.state["anchor"][name] - parameters[name])
                    for name in self._rounds[kind]
                },
                self.samples,
                self._about(),
            )

    @property
    def uncounted_steps(self) -> int:
        """The number of last steps that no round counts, or will count."""
        counted = [lane.counted_steps for lane in self._lanes.values()]
        return self.steps - min(counted, default=self.steps)

    def _about(self) -> dict[str, Any]:
        return {"steps": self.steps, "seconds": self._clock, "loss": self._mailbox.loss}

    def _state_of(self, kind: str) -> State:
        return {
            shared: {name: self._numpy(self.state[shared][name]) for name in self._rounds[kind]}
            for shared in self.algorithm.shared
        }

    def _numpy(self, array: Any) -> np.ndarray:
        """A flat copy."""
        return np.array(self._front_end.framework.to_numpy(array)).reshape(-1)

    def _of_framework(self, parameters: OfFramework, arrays: Arrays) -> OfFramework:
        return {name: self._like(values, parameters[name]) for name, values in arrays.items()}

    def _like(self, values: np.ndarray, parameter: Any) -> Any:
        shaped = values.reshape(tuple(parameter.shape))
        return self._front_end.framework.from_numpy(shaped, parameter)

    def finish(self) -> None:
        """Do nothing: an average must arrive in its step, before a state is saved."""

    def saved_state(self) -> dict[str, dict[str, Any]]:
        raise RuntimeError(_IN_STORE)

    def require_loadable(self) -> None:
        raise RuntimeError(_IN_STORE)

    def go_on(
        self, steps: int, state: dict[str, dict[str, Any]], has_changed: bool = False
    ) -> None:
        self.require_loadable()


class _Lane:
    """The rounds of one kind: the one under way, and what the next one must add or leave out."""

    def __init__(self, participant: Participant, epoch: int | None) -> None:
        self.participant, self.epoch = participant, epoch  # the epoch is set in the next round
        self.uncounted: Arrays = {}  # by any round, and no longer in the parameters
        self.counted: Arrays = {}  # by a round, and still in the parameters
        self._under_way: Future[Outcome] | None = None
        self._made: Arrays = {}  # the changes in the parameters at the last contribution
        # Those of the last contribution, and of the last one that counted.
        self._samples = self._counted_samples = 0.0
        self._steps = self.counted_steps = 0
        self._of_uncounted = 0.0, 0  # the samples and steps of `uncounted`
        self._contributed: Contribution | None = None  # to the round under way
        self._has_restarted = False  # while the round was under way

    @property
    def is_idle(self) -> bool:
        return self._under_way is None

    def contribute(
        self, differences: Arrays, samples: float, about: dict[str, Any], state: State | None
    ) -> None:
        """Begin to take part in a round."""
        contribution = self._contributed = self._contribution(differences, samples, about)
        if self.epoch is not None:
            self.participant.packing.set_epoch(self.epoch)
            self.epoch = None
        self._begin(partial(self.participant.take_part, contribution, state))

    def _begin(self, call: Callable[[], Outcome]) -> None:
        self._under_way = future = Future()

        def learn() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        # Python waits at its end for a daemon thread neither, nor for a store that does not answer.
        threading.Thread(target=learn, name=self.participant.kind, daemon=True).start()

    def _contribution(
        self, differences: Arrays, samples: float, about: dict[str, Any]
    ) -> Contribution:
        self._made, self._samples, self._steps = differences, samples, about["steps"]
        return Contribution(self._due(differences), samples - self._counted_samples, about)

    def _due(self, made: Arrays) -> Arrays:
        """The changes in the parameters, with `uncounted` and without `counted`."""
        due = dict(made)
        for name, values in self.uncounted.items():
            due[name] = due[name] + values
        for name, values in self.counted.items():
            due[name] = due[name] - values
        return due

    def finished(self) -> Outcome | None:
        """The outcome of the round under way, if it has ended."""
        if self.is_idle or not self._under_way.done():
            return None
        return self._under_way.result()

    def awaited(self, grace: float, hindered_seconds: Callable[[], float]) -> Outcome | None:
        """Wait for the round under way. None if it has been hindered for longer than `grace`."""
        while not self.is_idle and not self._under_way.done():
            if hindered_seconds() > grace:
                return None
            wait([self._under_way], _POLL)
        return self.finished()

    def last_outcome(self) -> Outcome:
        """Wait until the round under way ends, and hand it over without averages that follow."""
        ended = self._under_way
        if ended.exception() is None and ended.result().is_last:
            return ended.result()
        return self.participant.hand_over(self._contributed)

    def settle(self, outcome: Outcome, restarted: bool) -> None:
        """Note the outcome, and whether the parameters have restarted from the anchor."""
        self._under_way = None
        if not outcome.is_last:
            self._begin(self.participant.following)
            return
        # Without a weight, nothing of the payload is in the average.
        counted = outcome.counted and (self._contributed is None or self._contributed.weight > 0)
        self._contributed = None
        restarted, self._has_restarted = restarted or self._has_restarted, False
        made, self._made = self._made, {}
        if not made:
            return  # it has only joined
        if counted:
            self.uncounted, self.counted = {}, {} if restarted else made
            self._of_uncounted = 0.0, 0
        if counted or outcome.nonfinite:  # a NaN undoes the steps since
            samples, steps = self._of_uncounted
            self._counted_samples, self.counted_steps = self._samples - samples, self._steps - steps
        if counted:
            return
        self.participant.packing.take_back()
        if restarted and not outcome.nonfinite:
            self.uncounted, self.counted = self._due(made), {}
            steps = self._steps - self.counted_steps
            self._of_uncounted = self._samples - self._counted_samples, steps

    def restart(self) -> None:
        """Note that a NaN has undone the changes in the parameters."""
        if self.is_idle:
            self.counted = {}
        else:
            self._has_restarted = True

    def leave(self, differences: Arrays, samples: float, about: dict[str, Any]) -> None:
        """Put what no round counts, and put it again if it comes after the result."""
        for _ in range(_ATTEMPTS):
            contribution = self._contribution(differences, samples, about)
            if not contribution.weight:
                self.counted_steps = self._steps  # nothing is left of them
                break
            self.settle(self.participant.hand_over(contribution), restarted=False)
        self.participant.leave()

"""What a worker changes is counted once, whatever happens to it and to its store.

In each test, one worker's steps are disturbed at a point of the protocol. At such a point another
worker, the rival, makes any number of rounds, which it decides at once.
"""

import tempfile
import threading
import time
from typing import NamedTuple, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gluon_gc import compression
from gluon_gc.exchange.plan import Tensor
from gluon_gc.mailbox import objects
from gluon_gc.mailbox.driver import MailboxDriver
from gluon_gc.mailbox.store import StoreError

from .workers import SHAPES, TIMEOUT, Member, assert_equal, decoded, read

AT_ONCE = 1e-9  # grace of the rival
GRACE = 0.02  # of the disturbed worker

POINTS = {
    "before it looks for results": ("get", "/result$", False),
    "before its payload is put": ("put", "/payloads/", False),
    "after its payload is put": ("put", "/payloads/", True),
    "before it lists the round": ("list", "/payloads/$", False),
    "before it gets payloads": ("get", "/payloads/", False),
    "before its result is put": ("put", "/result$", False),
    "after its result is put": ("put", "/result$", True),
    "before it lists the states": ("list", "/states/$", False),
    "before it saves a state": ("put", "/states/", False),
    "before it removes rounds": ("list", "/rounds/0", False),
}


class Event(NamedTuple):
    """What happens in one step of the worker."""

    point: Optional[str] = None
    rounds: int = 0  # that the rival makes at the point
    before: int = 0  # that it makes before the step
    fails_for: int = 0  # the steps until the store answers again
    fault: str = ""  # "cut": the payload is cut short; "nan": a parameter becomes NaN


EVENTS = st.builds(
    Event,
    point=st.none() | st.sampled_from(list(POINTS)),
    rounds=st.sampled_from([0, 1, 1, 2, 5, 9]),
    before=st.sampled_from([0, 0, 0, 1, 4]),
    fails_for=st.sampled_from([0, 0, 0, 1, 3]),
    fault=st.sampled_from(["", "", "", "", "cut", "nan"]),
)
EXAMPLES = settings(max_examples=3, suppress_health_check=list(HealthCheck))


class Accounting(MailboxDriver):
    """Adds up what the algorithm drops: see `dropped` of `Disturbed`."""

    def start(self, request):
        own, kind = self._front_end, request.kind
        made = {name: own.made[name].copy() for name in request.vectors}
        if self._lanes[kind].is_idle:
            own.before[kind] = own.uncounted()
        answer = super().start(request)

        def noting():
            averages = answer()
            for name in averages:
                own.dropped[name] += own.made[name] - made[name]
            return averages

        return noting

    def _apply(self, kind, *args, **kwargs):
        own, names, lane = self._front_end, self._rounds[kind], self._lanes[kind]
        had_nan = any(np.isnan(own.values[name]).any() for name in names)
        counted, dropped = shaped(lane.counted), self._only_in_parameters(kind)
        averages = super()._apply(kind, *args, **kwargs)
        if had_nan and not any(np.isnan(own.values[name]).any() for name in names):
            assert_equal(own.values, self.state["anchor"])
            uncounted, missing = own.uncounted(), own.missing()
            for name in names:
                np.testing.assert_allclose(
                    uncounted[name],
                    own.before[kind][name] + counted.get(name, 0),
                    atol=1e-5,
                    err_msg=name,
                )
                dropped[name] = missing[name]
            for name, values in dropped.items():
                own.dropped[name] += values
        return averages

    def _only_in_parameters(self, but):
        """The changes of other kinds in the parameters that are neither counted nor under way."""
        changes, found = self._front_end.changes(), {}
        for kind, lane in self._lanes.items():
            elsewhere = shaped(lane.counted if lane.is_idle else lane._made)
            for name in self._rounds[kind] if kind != but else ():
                found[name] = changes[name] - elsewhere.get(name, 0)
        return found


def shaped(arrays):
    return {name: values.reshape(SHAPES[name]) for name, values in arrays.items()}


class Disturbed(Member):
    """A worker, and the sum of what the results of its run count from it.

    `dropped` is the sum of the differences that the algorithm drops: those of the steps while a
    round is under way, and those in parameters that restart from the anchor because of a NaN.
    """

    def __init__(self, url, options, params, **settings):
        super().__init__(url, 0, options, params, Accounting, grace=GRACE, **settings)
        self.dropped = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.counted = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.before = {}  # what no round had counted before an attempt, by the kind of round
        self.seen, self.params = set(), compression.parse(params)

    def note(self, url, name):
        """Add what a result, which has just been written, counts."""
        if not name.endswith("/result"):
            return
        kind, _, number, _ = name.split("/")
        if (kind, number) in self.seen:
            return  # of a removed round, from a worker that slept meanwhile: nobody may apply it
        self.seen.add((kind, number))
        weights = {each["worker"]: each["weight"] for each in read(url, name).header["counted"]}
        if self.name not in weights:
            return
        assert weights[self.name] > 0  # or the run would lose the payload
        payload = read(url, objects.payload_name(kind, int(number), self.name))
        names = self.driver._rounds[kind]
        tensors = [Tensor(n, int(np.prod(SHAPES[n])), "float32", self.params) for n in names]
        lengths = payload.header["lengths"]
        for n, values in decoded(tensors, lengths, payload.body, 1 << 20).items():
            self.counted[n] += values.reshape(SHAPES[n])

    def missing(self):
        """All changes less those that are counted, or will be. Zero if nothing is lost."""
        uncounted, changes = self.uncounted(), self.changes()
        return {
            name: self.made[name]
            - self.dropped[name]
            - self.counted[name]
            - uncounted[name]
            - changes[name]
            for name in SHAPES
        }


def disturbed(events, options, params, keep):
    """Train a worker while these events happen."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/run"
        worker = Disturbed(url, options, params, keep=keep).join()
        rival = Member(url, 1, options, params, grace=AT_ONCE, keep=keep).join()
        lock, every = threading.RLock(), worker.driver.algorithm.every
        for member in (worker, rival):
            member.store.created = lambda name: worker.note(url, name)

        def contend(rounds):
            with lock:
                rival.train(rounds * every)
                _settle(rival)

        for event in events:
            contend(event.before)
            _make(event, worker, contend, lock)
            assert_zero(worker.missing())
        worker.train(every)  # takes up what it has not seen yet
        _settle(worker)
        assert_same_as_a_newcomer(worker, url, options, params)
        contend(1)
        assert_same_as_a_newcomer(rival, url, options, params)
        for member in (worker, rival):
            member.run.close(puts=False)
        return worker


def left(event, steps, min_workers, options, params):
    """Let a worker leave after some steps, while an event happens in them or meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/run"
        worker = Disturbed(url, options, params, min_workers=min_workers).join()
        rival = Member(url, 1, options, params, grace=AT_ONCE).join()
        for member in (worker, rival):
            member.store.created = lambda name: worker.note(url, name)
        every = worker.driver.algorithm.every

        def contend():
            rival.train(event.rounds * every)
            if event.fails_for:
                raise StoreError("no answer")

        worker.train(event.before)
        if event.point:
            operation, pattern, after = POINTS[event.point]
            worker.store.trap(operation, pattern, contend, after)
        worker.train(steps)
        worker.run.close()
        if worker.driver.uncounted_steps:
            assert event.fails_for
            return
        lanes = worker.driver._lanes.items()
        while any(rival.participant(kind).round < lane.participant.round for kind, lane in lanes):
            rival.train(every)  # decides the rounds that have payloads of the worker
            _settle(rival)
        residuals = [lane.participant.packing.residuals() for _, lane in lanes]
        residual = shaped({n: values for each in residuals for n, values in each.items()})
        assert_zero(
            {
                name: worker.made[name]
                - worker.dropped[name]
                - worker.counted[name]
                - residual.get(name, 0)
                for name in SHAPES
            }
        )
        rival.run.close(puts=False)


def assert_zero(arrays):
    for name, values in arrays.items():
        np.testing.assert_allclose(values, 0, atol=1e-4, err_msg=name)


def _make(event, worker, contend, lock):
    """Make the steps of a round of the worker, while an event happens."""
    store, every, is_over = worker.store, worker.driver.algorithm.every, False

    def spring():
        contend(event.rounds)
        with lock:
            store.is_down = event.fails_for > 0 and not is_over

    if event.point:
        operation, pattern, after = POINTS[event.point]
        store.trap(operation, pattern, spring, after)
    if event.fault == "cut":
        store.alter = cut_payloads
    elif event.fault == "nan":
        worker.nan_in = "b"
    worker.train(every)
    for _ in range(event.fails_for):
        contend(1)
        worker.train(every)
    with lock:
        is_over, store.is_down = True, False
    store.clear()
    _settle(worker)
    store.alter = as_it_is
    while any(np.isnan(x).any() for x in worker.values.values()):
        worker.train(every)
        _settle(worker)


def _settle(worker):
    """Train until no attempt is under way."""
    end = time.monotonic() + TIMEOUT
    while not worker.is_idle():
        assert time.monotonic() < end
        worker.train()
        time.sleep(0.002)


def as_it_is(operation, name, data):
    return data


def cut_payloads(operation, name, data):
    return data[:-3] if operation == "put" and "/payloads/" in name else data


def assert_same_as_a_newcomer(member, url, options, params):
    """A member that has seen all rounds has the shared state of a worker that joins now."""
    newcomer = Member(url, 2, options, params).join()
    assert_equal(newcomer.shared(), member.shared())
    newcomer.run.close()


UNCOMPRESSED, ONEBIT = {}, {"compressor": "onebit", "ef": "vanilla"}


CASES = {
    "uncompressed": (UNCOMPRESSED, {}),
    "onebit": (ONEBIT, {}),
    "onebit, overlap": (ONEBIT, {"every": 2, "overlap": 1}),
    "onebit, fragments": (ONEBIT, {"every": 3, "fragments": 3}),
    "onebit, fragments, overlap": (ONEBIT, {"every": 4, "fragments": 2, "overlap": 1}),
}


@pytest.mark.parametrize("params, options", CASES.values(), ids=CASES.keys())
@settings(EXAMPLES)
@example(events=[Event("before its payload is put", fails_for=1)], keep=3)
@example(events=[Event(), Event("before its payload is put", rounds=5)], keep=1)
@given(events=st.lists(EVENTS, min_size=1, max_size=5), keep=st.sampled_from([1, 3]))
def test_all_changes_are_counted_once(params, options, events, keep):
    disturbed(events, options, params, keep)


LAST_EVENTS = st.builds(
    Event,
    point=st.sampled_from(list(POINTS)),
    rounds=st.sampled_from([0, 1, 2, 5]),
    before=st.sampled_from([0, 1, 4, 5]),
    fails_for=st.sampled_from([0, 0, 1]),
)


@pytest.mark.parametrize("params, options", CASES.values(), ids=CASES.keys())
@settings(EXAMPLES)
@example(event=Event("before its payload is put", fails_for=1), steps=4, min_workers=1)
@example(event=Event("after its payload is put", rounds=1, fails_for=1), steps=5, min_workers=2)
@given(event=LAST_EVENTS, steps=st.sampled_from([1, 2, 4, 5]), min_workers=st.sampled_from([1, 2]))
def test_all_changes_of_a_worker_that_leaves_are_counted_once(
    params, options, event, steps, min_workers
):
    left(event, steps, min_workers, options, params)

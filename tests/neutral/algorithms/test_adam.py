"""Algorithms that need Adam, without a framework: on NumPy arrays, with threads as workers."""

import math

import numpy as np
import pytest

from gluon_gc import algorithms
from gluon_gc.algorithms.adam import Update
from gluon_gc.algorithms.driver import Driver
from tests.algorithm_replay import AVERAGES, ZERO_ONE, OneBitAdamReplay, ZeroOneAdamReplay
from tests.neutral.algorithms.test_algorithms import SHAPES, Worker, train, trained

RATE, BETAS, EPSILON = 0.01, (0.9, 0.99), 1e-8
DECAYS = [{}, {"decay": 0.1}, {"coupled": 0.1}]


def corrected(lr, v, c1, c2):
    return lr / c1, np.sqrt(v) / np.float32(math.sqrt(c2)) + np.float32(EPSILON)


def adam(x, m, v, gradient, steps, decay=0.0, coupled=0.0):
    """Make a step of Adam or AdamW in place."""
    (b1, b2), gradient = BETAS, gradient + np.float32(coupled) * x
    x *= np.float32(1 - RATE * decay)
    m[:] = np.float32(b1) * m + np.float32(1 - b1) * gradient
    v[:] = np.float32(b2) * v + np.float32(1 - b2) * gradient * gradient
    rate, denominator = corrected(RATE, v, 1 - b1**steps, 1 - b2**steps)
    x -= np.float32(rate) * (m / denominator)


class LateWorker(Worker):
    """A worker whose first row of w has no gradient in the first four steps."""

    def draw(self, step):
        super().draw(step)
        if step < 4:
            self.grads["w"][0] = 0


class AdamWorker(LateWorker):
    """A worker whose optimizer is Adam."""

    decays = {}

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.adam, self.steps = self, 0
        self.m = {name: np.zeros_like(x) for name, x in self.values.items()}
        self.v = {name: np.zeros_like(x) for name, x in self.values.items()}
        self.compressed = {}

    def declare(self, kind, shapes, compressed):
        super().declare(kind, shapes, compressed)
        self.compressed[kind] = compressed

    def update(self, *name_and_frozen):
        """The callable of the driver without arguments; otherwise `Adam.update`."""
        if name_and_frozen:
            return self.update_of(*name_and_frozen)
        self.count()
        for name, x in self.values.items():
            adam(x, self.m[name], self.v[name], self.grads[name], self.steps, **self.decays)

    def moments(self, name):
        return self.m[name], self.v[name]

    def variance(self, name):
        return self.v[name].sum()

    def betas(self, name):
        return BETAS

    def gradient(self, name):
        coupled = self.decays.get("coupled", 0.0)
        return self.grads[name] + np.float32(coupled) * self.values[name]

    def as_float(self, number):
        return float(number)

    def count(self):
        self.steps += 1

    def update_of(self, name, frozen):
        b1, b2 = BETAS
        c1, c2 = 1 - b1**self.steps, 1 - b2 ** (self.steps - frozen)
        return Update(*corrected(RATE, self.v[name], c1, c2), RATE * self.decays.get("decay", 0.0))


def with_decays(**decays):
    return type("AdamWorker", (AdamWorker,), {"decays": decays})


def onebit_adam(freeze_step):
    return {"name": "onebit_adam", "freeze_step": freeze_step}


def replayed(workers, steps, freeze_step, **decays):
    them = [LateWorker(rank, workers) for rank in range(workers)]

    def warm_up(replay, means):
        for name, x in replay.x.items():
            state = replay.m[name], replay.v[name]
            adam(x, *state, means[name], replay.steps, **decays)

    replay = OneBitAdamReplay(
        them[0].values, freeze_step, warm_up, corrected, BETAS, RATE, **decays
    )
    for step in range(steps):
        for worker in them:
            worker.draw(step)
        replay.step([worker.grads for worker in them])
    return replay


@pytest.mark.parametrize("decays", DECAYS, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_onebit_adam_is_its_replay_bit_for_bit(workers, decays):
    them, drivers = trained(onebit_adam(4), workers, 11, with_decays(**decays))
    expected = replayed(workers, 11, 4, **decays)
    for worker in them:
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], expected.x[name])
            np.testing.assert_array_equal(worker.m[name], expected.m[name])
            np.testing.assert_array_equal(worker.v[name], expected.v[name])
        kinds = [kind for kind, *_ in worker.rounds]
        assert kinds == ["gradient"] * 4 + ["momentum"] * 7
        assert worker.compressed == {"gradient": False, "momentum": True}
        assert worker.steps == drivers[0].steps == 11


def test_elements_without_a_gradient_in_the_warm_up_stay_as_they_are():
    kind = with_decays(decay=0.1)
    (worker,), _ = trained(onebit_adam(4), 1, 9, kind)
    (before,), _ = trained(onebit_adam(4), 1, 4, kind)
    assert not worker.v["w"][0].any() and not worker.m["w"][0].any()
    assert worker.grads["w"][0].all()
    np.testing.assert_array_equal(worker.values["w"][0], before.values["w"][0])
    assert (worker.values["w"][1:] != before.values["w"][1:]).all()


def test_if_it_never_freezes_it_is_adam():
    them, _ = trained(onebit_adam(99), 2, 8, AdamWorker)
    expected = replayed(2, 8, 99)
    for worker in them:
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], expected.x[name])


@pytest.mark.parametrize("options", [onebit_adam(20), ZERO_ONE], ids=["onebit", "zero_one"])
@pytest.mark.parametrize("stopped", [0, 3, 5, 8, 18, 19, 20, 21, 23])
def test_a_driver_that_goes_on_from_a_checkpoint_gives_the_same_bits(stopped, options):
    results = []
    for stop in (None, stopped):
        worker = AdamWorker(0, 1)
        worker.meet = dict
        driver = Driver(algorithms.parse(options), worker)
        for step in range(26):
            if step == stop:
                saved, driver = driver, Driver(algorithms.parse(options), worker)
                driver.go_on(saved.steps, saved.saved_state())
            worker.draw(step)
            driver.step(worker.update, worker)
        results.append({"values": worker.values, "m": worker.m, **driver.saved_state()})
    for kind, arrays in results[0].items():
        for name in SHAPES:
            np.testing.assert_array_equal(results[1][kind][name], arrays[name])


class FallingWorker(AdamWorker):
    """A worker whose gradients fall to a tenth within the warm-up."""

    def draw(self, step):
        super().draw(step)
        for gradient in self.grads.values():
            gradient *= np.float32(10 ** (-step / 100))


@pytest.mark.parametrize("kind, warned", [(FallingWorker, True), (AdamWorker, False)])
def test_a_warm_up_that_ends_while_gradients_fall_is_warned_of(kind, warned, logged):
    trained(onebit_adam(100), 1, 102, kind)
    lines = [record.getMessage() for record in logged.records]
    assert len(lines) == warned
    for line in lines:
        assert "freezes Adam's variance in step 100 while gradients still fall fast" in line


class UnusedWorker(AdamWorker):
    """A worker whose parameter b gets no gradients in the first steps."""

    def draw(self, step):
        super().draw(step)
        self.grads["b"] *= np.float32(step >= 5)


@pytest.mark.parametrize("options", [onebit_adam(5), ZERO_ONE], ids=["onebit", "zero_one"])
def test_a_parameter_that_can_no_longer_train_is_named_once(options, logged):
    (worker,), _ = trained(options, 1, 12, UnusedWorker)
    np.testing.assert_array_equal(worker.values["b"], Worker(0, 1).values["b"])
    (line,) = (record.getMessage() for record in logged.records)
    assert f"algorithm {options['name']} does not train b: Adam's variance is zero there" in line


@pytest.mark.parametrize("decays", DECAYS, ids=str)
def test_if_each_step_updates_the_variance_zero_one_adam_is_adam(decays):
    options = {"name": "zero_one_adam", "var_freeze_step": 99, "var_update_scaler": 99}
    them, _ = trained(options, 2, 8, with_decays(**decays))
    expected = replayed(2, 8, 99, **decays)
    for worker in them:
        for name in SHAPES:
            np.testing.assert_allclose(worker.values[name], expected.x[name], atol=1e-6)


def test_a_learning_rate_of_zero_keeps_everything_finite(monkeypatch):
    monkeypatch.setattr("tests.neutral.algorithms.test_adam.RATE", 0.0)
    (worker,), _ = trained(ZERO_ONE, 1, 20, AdamWorker)
    for name, first in Worker(0, 1).values.items():
        np.testing.assert_array_equal(worker.values[name], first)
        assert np.isfinite(worker.m[name]).all()


def test_zero_one_adam_restarts_from_the_anchor_after_a_round_that_fails():
    class Failing(AdamWorker):
        fails = False

        def start(self, request):
            averages = super().start(request)
            return self.fail if self.fails else averages

        def fail(self):
            raise RuntimeError("a NaN")

    worker = Failing(0, 1)
    worker.meet = dict
    driver = Driver(algorithms.parse({"name": "zero_one_adam", "var_freeze_step": 2}), worker)
    for step in range(5):
        worker.draw(step)
        driver.step(worker.update, worker)
    before = {name: x.copy() for name, x in worker.values.items()}
    worker.draw(5)
    worker.grads["w"][1], worker.fails = np.nan, True
    with pytest.raises(RuntimeError, match="a NaN"):
        driver.step(worker.update, worker)
    for name, x in worker.values.items():
        np.testing.assert_array_equal(x, before[name])
        assert not worker.m[name].any() and not driver.state["sum"][name].any()
        assert driver.state["rate"][name] == 0 and driver.state["keep"][name] == 1
    worker.draw(6)
    worker.fails = False
    driver.step(worker.update, worker)
    assert all(np.isfinite(x).all() and (x != before[n]).any() for n, x in worker.values.items())


ROUNDING = dict(rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [onebit_adam(4), ZERO_ONE], ids=["onebit", "zero_one"])
@pytest.mark.parametrize("last", [1, 2, 4, 6, 9, 13])
def test_what_a_script_changes_after_an_average_stays(options, last):
    """Adam's steps do not depend on the values of the parameters."""
    results = []
    for change in (0, 3):
        worker = AdamWorker(0, 1)
        worker.meet = dict
        driver = Driver(algorithms.parse(options), worker)
        for step in range(1, 18):
            worker.draw(step)
            driver.step(worker.update, worker)
            assert driver.algorithm.keeps_changes(step + 1) or step not in AVERAGES
            if step == last:
                for x in worker.values.values():
                    x += np.float32(change)
        results.append(worker.values)
    for name in SHAPES:
        np.testing.assert_allclose(results[1][name], results[0][name] + 3, **ROUNDING)


@pytest.mark.parametrize("last", [3, 13, 40])
def test_an_interval_that_began_with_other_options_ends_with_an_average(last):
    """Two local steps came since the last average. The next step may be a variance step."""
    workers, drivers = trained(ZERO_ONE, 2, 11, AdamWorker)
    options = {**ZERO_ONE, "var_freeze_step": last, "var_update_scaler": 9}
    continued = [Driver(algorithms.parse(options), worker) for worker in workers]
    for driver, saved in zip(continued, drivers):
        driver.go_on(saved.steps, saved.saved_state(), has_changed=True)
    for step in range(11, 20):
        train(workers, continued, [step])
        one, other = (np.concatenate([x.ravel() for x in w.values.values()]) for w in workers)
        assert (one == other).all() == continued[0].algorithm.keeps_changes(step + 2), step


WITHOUT_LOCAL_STEPS = {**ZERO_ONE, "local_step_clipper": 1}
CHANGES = [
    (onebit_adam(10), onebit_adam(3)),
    (onebit_adam(3), onebit_adam(10)),
    (onebit_adam(3), onebit_adam(99)),
    (
        {"name": "onebit_adam", "freeze_step": 0.1, "total_steps": 50},
        {"name": "onebit_adam", "freeze_step": 0.1, "total_steps": 150},
    ),
    ({**WITHOUT_LOCAL_STEPS, "var_freeze_step": 99}, WITHOUT_LOCAL_STEPS),
    (WITHOUT_LOCAL_STEPS, {**ZERO_ONE, "var_freeze_step": 99, "var_update_scaler": 16}),
]


class ConstantWorker(AdamWorker):
    """A worker whose gradients are 1, so that each step of Adam subtracts the learning rate."""

    def draw(self, step):
        for name, shape in SHAPES.items():
            self.grads[name] = np.ones(shape, np.float32)


@pytest.mark.parametrize("is_earlier", [False, True], ids=["present", "earlier"])
@pytest.mark.parametrize("before, now", CHANGES, ids=str)
def test_the_variance_is_corrected_by_its_updates_after_a_change_of_options(
    before, now, is_earlier
):
    """A checkpoint of an earlier version lacks the number of updates."""
    (worker,), (saved,) = trained(before, 1, 20, ConstantWorker)
    state, algorithm = saved.saved_state(), algorithms.parse(now)
    frozen = state["frozen_steps"]
    if is_earlier:
        del state["frozen_steps"]
        state.update(algorithm.added(state, 20, before))
    else:
        assert not algorithm.added(state, 20, before)
    np.testing.assert_equal(state["frozen_steps"], frozen)
    driver = Driver(algorithm, worker)
    driver.go_on(20, state, has_changed=True)
    start = {name: x.copy() for name, x in worker.values.items()}
    for step in range(1, 9):
        train([worker], [driver], [step])
        for name, x in worker.values.items():
            np.testing.assert_allclose(start[name] - x, step * RATE, rtol=1e-3)


def test_an_interval_that_began_with_other_options_keeps_its_anchor():
    worker = AdamWorker(0, 1)
    worker.meet = dict
    driver = Driver(algorithms.parse(ZERO_ONE), worker)
    for step in range(12):
        worker.draw(step)
        driver.step(worker.update, worker)
    saved, anchor = driver, dict(driver.state["anchor"])
    driver = Driver(algorithms.parse({**ZERO_ONE, "local_step_clipper": 1}), worker)
    driver.go_on(saved.steps, saved.saved_state(), has_changed=True)
    before = {name: x.copy() for name, x in worker.values.items()}
    worker.draw(12)
    driver.step(worker.update, worker)
    for name, x in anchor.items():
        np.testing.assert_array_equal(driver.state["anchor"][name], x)
        assert (x != before[name]).any()


def test_a_step_that_fails_does_not_count():
    class Failing(AdamWorker):
        fails = 0

        def start(self, request):
            averages = super().start(request)
            return self.fail if self.fails else averages

        def fail(self):
            self.fails -= 1
            raise RuntimeError("a NaN")

    workers = Failing(0, 1), Failing(0, 1)
    for worker, failing in zip(workers, ([], [2, 6, 7])):
        worker.meet = dict
        driver = Driver(algorithms.parse(onebit_adam(4)), worker)
        for step in range(9):
            worker.draw(step)
            if step in failing:
                worker.fails = 2
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="a NaN"):
                        driver.step(worker.update, worker)
            driver.step(worker.update, worker)
        assert driver.steps == worker.steps == 9
    for name in SHAPES:
        np.testing.assert_array_equal(workers[0].values[name], workers[1].values[name])


def test_the_length_of_the_warm_up_must_be_given():
    with pytest.raises(KeyError, match=r"\['freeze_step'\] is missing; onebit_adam needs it"):
        algorithms.parse("onebit_adam")
    allowed = r"\['freeze_step'\] must be a share below 1 or a whole number >= 1, got "
    for wrong in (0, -3, 1.5, 1.0):
        with pytest.raises(ValueError, match=f"{allowed}{wrong}"):
            algorithms.parse(onebit_adam(wrong))
    for name, key in (("onebit_adam", "freeze_step"), ("zero_one_adam", "var_freeze_step")):
        said = rf"\['total_steps'\] is missing; {name} needs it because '{key}' is 0.2, a share"
        with pytest.raises(KeyError, match=said):
            algorithms.parse({"name": name, key: 0.2})
        with pytest.raises(
            ValueError, match=r"\['total_steps'\] must be a whole number > 0, got 0"
        ):
            algorithms.parse({"name": name, key: 0.2, "total_steps": 0})
        parsed = algorithms.parse({"name": name, key: 7})
        assert algorithms.parse({"name": name, **parsed.described()}) == parsed


@pytest.mark.parametrize("share, total, steps", [(0.2, 500, 100), (0.001, 10, 1), (7, 10, 7)])
def test_the_length_of_the_warm_up_may_be_a_share_of_all_steps(share, total, steps):
    for name, key in (("onebit_adam", "freeze_step"), ("zero_one_adam", "var_freeze_step")):
        parsed = algorithms.parse({"name": name, key: share, "total_steps": total})
        assert parsed.frozen_after == steps
        assert algorithms.parse({"name": name, key: steps}).frozen_after == steps


def test_a_warm_up_that_is_a_share_ends_with_its_last_step():
    options = {"name": "onebit_adam", "freeze_step": 0.4, "total_steps": 10}
    (worker,), _ = trained(options, 1, 10, AdamWorker)
    assert [kind for kind, *_ in worker.rounds] == ["gradient"] * 4 + ["momentum"] * 6


@pytest.mark.parametrize("decays", DECAYS, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_zero_one_adam_is_its_replay_bit_for_bit(workers, decays):
    them, drivers = trained(ZERO_ONE, workers, 19, with_decays(**decays))
    drawn = [LateWorker(rank, workers) for rank in range(workers)]
    values = [worker.values for worker in drawn]
    expected = ZeroOneAdamReplay(values, corrected, BETAS, RATE, **decays)
    for step in range(19):
        for worker in drawn:
            worker.draw(step)
        expected.step([worker.grads for worker in drawn])
    for rank, worker in enumerate(them):
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], expected.workers[rank][name])
            np.testing.assert_array_equal(worker.m[name], expected.m[rank][name])
            np.testing.assert_array_equal(worker.v[name], expected.v[name])
            np.testing.assert_array_equal(
                drivers[rank].state["anchor"][name], expected.anchor[name]
            )
        kinds = [kind for kind, *_ in worker.rounds]
        assert kinds.count("gradient") == 4 and kinds.count("sum") == 6
        assert worker.compressed == {"gradient": False, "sum": True}

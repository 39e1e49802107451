"""powersgd without a framework: on NumPy arrays, with threads as workers."""

import numpy as np
import pytest

from gluon_gc import algorithms
from gluon_gc.algorithms import powersgd as module
from gluon_gc.algorithms.driver import Driver
from tests.algorithm_replay import PowerSGDReplay
from tests.neutral.algorithms import test_algorithms
from tests.neutral.algorithms.test_algorithms import NumPy, Worker, trained

SHAPES = {
    "conv": (16, 8, 3, 3),
    "embedding": (60, 9),
    "tiny": (3, 3),
    "bias": (7,),
    "row": (1, 50),
    "wide": (9, 4100),
}


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    monkeypatch.setattr(test_algorithms, "SHAPES", SHAPES)


def powersgd(rank, **more):
    return {"name": "powersgd", "rank": rank, **more}


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("rank, start", [(1, 0), (2, 2), (4, 0)])
@pytest.mark.parametrize("divided", [False, True])
def test_powersgd_is_its_replay_bit_for_bit(workers, rank, start, divided, monkeypatch):
    if divided:
        monkeypatch.setattr(module, "_DIVIDED", 0)
    them, drivers = trained(powersgd(rank, start=start), workers, 6)
    replays = [Worker(r, workers) for r in range(workers)]
    replay = PowerSGDReplay(SHAPES, workers, rank, start)
    for step in range(6):
        for worker in replays:
            worker.draw(step)
        averages = replay.step([worker.grads for worker in replays])
        for worker in replays:
            worker.grads = dict(averages)
            worker.update()
    for worker in them:
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], replays[0].values[name], name)
    for driver in drivers:
        for name, q in replay.q.items():
            np.testing.assert_array_equal(driver.state["right_factor"][name], q)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_only_matrices_that_become_half_as_large_are_compressed(rank):
    (worker,), (driver,) = trained(powersgd(rank), 1, 1)
    totals = driver.state["total"]
    assert totals.keys() == {n for n in SHAPES if 2 * rank * sum(sides(n)) < np.prod(SHAPES[n])}
    rounds = [("left_factor", *SHAPES)]
    if totals:
        rounds.append(("right_factor", *totals))
    assert worker.rounds == rounds


def test_large_models_have_two_parts_whose_factors_travel_in_turns(monkeypatch):
    monkeypatch.setattr(module, "_DIVIDED", 0)
    (worker,), _ = trained(powersgd(1), 1, 1)
    assert worker.rounds == [
        ("left_factor.0", "tiny", "bias", "row", "wide"),
        ("left_factor.1", "conv", "embedding"),
        ("right_factor.0", "wide"),
        ("right_factor.1", "conv", "embedding"),
    ]


def sides(name):
    return SHAPES[name][0], int(np.prod(SHAPES[name][1:]))


def test_a_rank_above_a_side_is_that_side():
    algorithm = algorithms.parse(powersgd(100))
    kinds = algorithm.rounds({"w": (2, 1000), "v": (1000, 300)})
    assert kinds["left_factor"] == {"w": (2, 1000), "v": (100, 1000)}
    kinds = algorithm.rounds({"w": (6, 1000), "scalar": ()})
    assert kinds["left_factor"] == {"w": (6, 1000), "scalar": ()} and len(kinds) == 1


def test_a_gradient_of_that_rank_is_averaged_exactly_and_the_residual_has_the_rest():
    class OfRankTwo(Worker):
        def draw(self, step):
            super().draw(step)
            left, right = (
                np.random.default_rng(s).standard_normal((2, n)) for s, n in [(1, 60), (2, 9)]
            )
            self.grads["embedding"] = (left.T @ right * (1 + self.rank)).astype(np.float32)

    them, drivers = trained(powersgd(2), 2, 3, OfRankTwo)
    expected = OfRankTwo(0, 2)
    expected.draw(0)
    step = expected.grads["embedding"] * np.float32(1.5 * 0.1)
    moved = expected.values["embedding"] - 3 * step
    np.testing.assert_allclose(them[0].values["embedding"], moved, atol=1e-4)
    residuals = [
        d.state["total"]["conv"]
        - d.state["left_factor"]["conv"].T @ d.state["right_factor"]["conv"]
        for d in drivers
    ]
    given = 0
    for step in range(3):
        for worker in (Worker(0, 2), Worker(1, 2)):
            worker.draw(step)
            given = given + worker.grads["conv"].reshape(16, 72) / 2
    applied = (Worker(0, 2).values["conv"] - them[0].values["conv"]).reshape(16, 72) / 0.1
    np.testing.assert_allclose(applied + sum(residuals) / 2, given, atol=1e-4)


def test_gradients_of_zeros_and_of_a_lower_rank_do_not_stop_later_ones():
    class Sleeping(Worker):
        def draw(self, step):
            super().draw(step)
            self.grads["conv"] *= step >= 2
            self.grads["embedding"][1:] *= step >= 2

    (worker,), (driver,) = trained(powersgd(3), 1, 4, Sleeping)
    assert np.isfinite(worker.values["conv"]).all()
    for name in ("conv", "embedding"):
        assert driver.state["right_factor"][name].any(axis=1).all()


@pytest.mark.parametrize("stopped", [0, 1, 2, 3])
def test_a_driver_that_goes_on_from_a_checkpoint_gives_the_same_bits(stopped):
    algorithm, results = algorithms.parse(powersgd(2, start=1)), []
    for stop in (None, stopped):
        worker = Worker(0, 1)
        worker.meet = dict
        driver = Driver(algorithm, worker)
        for step in range(5):
            if step == stop:
                saved, driver = driver, Driver(algorithm, worker)
                state = {k: {n: a.copy() for n, a in v.items()} for k, v in saved.state.items()}
                driver.go_on(saved.steps, state)
            worker.draw(step)
            driver.step(worker.update)
        results.append(worker.values)
    for name in SHAPES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_another_number_of_workers_keeps_the_mean_of_the_residuals():
    _, drivers = trained(powersgd(2), 2, 5)
    states = [driver.state for driver in drivers]
    regrouped = algorithms.parse(powersgd(2)).regrouped(states)
    assert regrouped["total"].keys() == states[0]["total"].keys()
    for name, total in regrouped["total"].items():
        average = states[0]["left_factor"][name].T @ states[0]["right_factor"][name]
        before = sum(state["total"][name] - average for state in states) / 2
        assert total.dtype == np.float32 and np.abs(before).max() > 1
        np.testing.assert_allclose(total - average, before, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_sent_in_the_first_round(bad):
    class Bad(Worker):
        def draw(self, step):
            super().draw(step)
            self.grads["conv"][3, 2, 1, 0] = bad

        def start(self, request):
            assert not np.isfinite(request.vectors["conv"]).all(), request.kind
            return super().start(request)

    (worker,), _ = trained(powersgd(2), 1, 1, Bad)
    assert np.isnan(worker.values["conv"]).any()


@pytest.mark.parametrize(
    "failing", ["left_factor", "right_factor", "left_factor.0", "left_factor.1", "right_factor.0"]
)
def test_residuals_start_from_zero_after_a_round_that_fails(failing, monkeypatch):
    if "." in failing:
        monkeypatch.setattr(module, "_DIVIDED", 0)

    class Failing(Worker):
        def start(self, request):
            averages = super().start(request)
            return self.fail if self.fails and request.kind == failing else averages

        def fail(self):
            raise RuntimeError("a NaN")

    worker = Failing(0, 1)
    worker.meet, worker.fails = dict, False
    driver = Driver(algorithms.parse(powersgd(2)), worker)
    for step in range(2):
        worker.draw(step)
        driver.step(worker.update)
    worker.draw(2)
    worker.grads["conv"][3, 2, 1, 0], worker.fails = np.nan, True
    with pytest.raises(RuntimeError, match="a NaN"):
        driver.step(worker.update)
    worker.draw(3)
    worker.fails, given = False, worker.grads["conv"].reshape(16, 72).copy()
    driver.step(worker.update)
    np.testing.assert_array_equal(driver.state["total"]["conv"], given)


def test_arrays_elsewhere_than_in_host_memory_use_the_frameworks_products():
    class Device(Worker):
        framework = type("Device", (NumPy,), {})()
        framework.in_host_memory = lambda array: False

    results = [trained(powersgd(2), 2, 4, kind)[0] for kind in (Worker, Device)]
    for name in SHAPES:
        host, device = (workers[0].values[name] for workers in results)
        np.testing.assert_allclose(host, device, atol=1e-4)
        np.testing.assert_array_equal(results[1][1].values[name], device)


def test_the_spellings_of_pytorch_are_taken():
    given = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 10}
    parsed = algorithms.parse({"name": "powersgd", **given})
    assert (parsed.rank, parsed.start) == (4, 10)

"""Algorithms without a framework: on NumPy arrays, with threads as workers."""

import threading

import numpy as np
import pytest

from gluon_gc import algorithms
from gluon_gc.algorithms.driver import Driver
from tests.algorithm_replay import LocalStepsReplay

SHAPES = {"w": (3, 4), "b": (5,)}


class Worker:
    """A front end for one worker thread; gradients are random, and the optimizer is SGD."""

    def __init__(self, rank, size):
        self.rank, self.values, self.grads = rank, {}, {}
        for number, (name, shape) in enumerate(SHAPES.items()):
            random = np.random.default_rng(number)
            self.values[name] = random.standard_normal(shape).astype(np.float32)
        self.declared, self.rounds, self._others = {}, [], size

    def draw(self, step):
        random = np.random.default_rng((step, self.rank))
        for name, shape in SHAPES.items():
            self.grads[name] = random.standard_normal(shape).astype(np.float32)

    def update(self):
        for name, gradient in self.grads.items():
            self.values[name] -= np.float32(0.1) * gradient

    def parameters(self):
        return self.values

    def gradients(self):
        return self.grads

    def declare(self, kind, shapes):
        self.declared[kind] = dict(shapes)

    def average(self, request):
        assert request.vectors.keys() == self.declared[request.kind].keys()
        self.rounds.append(request.kind)
        return self.meet(request.vectors)


def trained(options, workers, steps):
    """Return the workers after `steps` steps of an algorithm, and their drivers."""
    barrier = threading.Barrier(workers, timeout=10)
    given = [None] * workers
    them = [Worker(rank, workers) for rank in range(workers)]
    drivers = [Driver(algorithms.parse(options), worker) for worker in them]

    def run(rank):
        def meet(vectors):
            given[rank] = vectors
            barrier.wait()
            sums = {n: sum(own[n] for own in given[1:]) + given[0][n] for n in vectors}
            barrier.wait()
            return {name: total / np.float32(workers) for name, total in sums.items()}

        them[rank].meet = meet
        for step in range(steps):
            them[rank].draw(step)
            drivers[rank].step(them[rank].update)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return them, drivers


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False}, {"outer_lr": 1, "outer_momentum": 0}], ids=str
)
def test_local_steps_is_its_replay_bit_for_bit(workers, options):
    them, drivers = trained({"name": "local_steps", "every": 3, **options}, workers, 8)
    replays = [Worker(rank, workers) for rank in range(workers)]
    replay = LocalStepsReplay([worker.values for worker in replays], every=3, **options)
    for step in range(8):
        for worker in replays:
            worker.draw(step)
            worker.update()
        replay.after_step()
    for worker, expected in zip(them, replays):
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], expected.values[name])
    assert them[0].rounds == ["difference"] * 2
    assert drivers[0].steps == 8
    for name in SHAPES:
        np.testing.assert_array_equal(drivers[0].state["anchor"][name], replay.anchor[name])


def test_one_step_without_outer_momentum_averages_gradients():
    them, _ = trained({"name": "local_steps", "every": 1, "outer_lr": 1, "outer_momentum": 0}, 2, 6)
    plain = Worker(0, 2)
    for step in range(6):
        gradients = []
        for rank in range(2):
            plain.rank = rank
            plain.draw(step)
            gradients.append(dict(plain.grads))
        plain.grads = {n: (gradients[0][n] + gradients[1][n]) / 2 for n in SHAPES}
        plain.update()
    for worker in them:
        for name in SHAPES:
            np.testing.assert_allclose(worker.values[name], plain.values[name], atol=1e-6)


@pytest.mark.parametrize("stopped", [0, 4, 6])
def test_a_driver_that_goes_on_from_a_checkpoint_gives_the_same_bits(stopped):
    algorithm, results = algorithms.parse({"name": "local_steps", "every": 3}), []
    for stop in (None, stopped):
        worker = Worker(0, 1)
        worker.meet = dict
        driver = Driver(algorithm, worker)
        for step in range(9):
            if step == stop:
                saved, driver = driver, Driver(algorithm, worker)
                driver.go_on(saved.steps, saved.state)
            worker.draw(step)
            driver.step(worker.update)
        assert driver.steps == 9
        results.append(worker.values)
    for name in SHAPES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


@pytest.mark.parametrize(
    "given, kind, said",
    [
        (3, TypeError, "algorithm must be None, a name or a dict, got 3"),
        ("local_step", ValueError, "did you mean 'local_steps'?"),
        ({"every": 3}, KeyError, "algorithm['name'] is missing"),
        ({"name": "local_steps", "evry": 3}, ValueError, "no option 'evry'; did you mean 'every'?"),
        ({"name": "local_steps", "every": 0}, ValueError, "algorithm['every'] must be a whole"),
        ({"name": "local_steps", "every": "3"}, TypeError, "got '3' (str)"),
        ({"name": "local_steps", "outer_momentum": 1}, ValueError, "from 0 to below 1, got 1"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(given, kind, said):
    with pytest.raises(kind) as raised:
        algorithms.parse(given)
    assert said in str(raised.value)


def test_none_is_no_algorithm_and_numbers_of_numpy_are_taken():
    assert algorithms.parse(None) is None
    parsed = algorithms.parse({"name": "local_steps", "every": np.int64(5)})
    assert parsed.every == 5 and parsed.outer_lr == 0.7


@pytest.mark.parametrize("name", algorithms.registry)
def test_options_have_defaults_that_they_allow_and_a_line_of_help(name):
    kind = algorithms.registry[name]
    assert kind.description
    for key, option in kind.keys().items():
        assert option.meaning
        if key in kind.defaults():
            option.check(key, kind.defaults()[key], "algorithm")

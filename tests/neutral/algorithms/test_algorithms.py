"""Algorithms without a framework: on NumPy arrays, with threads as workers."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from gluon_gc import algorithms
from gluon_gc.algorithms.base import Step
from gluon_gc.algorithms.driver import Driver
from tests.algorithm_replay import LocalStepsReplay

SHAPES = {"w": (3, 4), "b": (5,), "bias": (2, 1)}


class NumPy:
    """The `Framework` of NumPy arrays."""

    threads = 1

    def in_host_memory(self, array):
        return True

    def to_numpy(self, array):
        return array

    def from_numpy(self, values, like):
        return values

    def multiply(self, a, b):
        return a @ b

    def wait(self, arrays):
        return


class Worker:
    """A front end for one worker thread; gradients are random, and the optimizer is SGD."""

    adam, framework = None, NumPy()

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

    def declare(self, kind, shapes, compressed):
        self.declared[kind] = dict(shapes)

    def start(self, request):
        assert request.vectors.keys() == self.declared[request.kind].keys()
        self.rounds.append((request.kind, *request.vectors))
        averages = self.meet({name: vector.copy() for name, vector in request.vectors.items()})
        return lambda: averages


def trained(options, workers, steps, kind=Worker):
    """Return the workers after `steps` steps of an algorithm, and their drivers."""
    them = [kind(rank, workers) for rank in range(workers)]
    drivers = [Driver(algorithms.parse(options), worker) for worker in them]
    train(them, drivers, range(steps))
    return them, drivers


def train(them, drivers, steps):
    """Make steps with each worker and its driver."""
    workers = len(them)
    barrier = threading.Barrier(workers, timeout=10)
    given = [None] * workers

    def run(rank):
        def meet(vectors):
            given[rank] = vectors
            barrier.wait()
            sums = {n: sum(own[n] for own in given[1:]) + given[0][n] for n in vectors}
            barrier.wait()
            return {name: total / np.float32(workers) for name, total in sums.items()}

        them[rank].meet = meet
        for step in steps:
            them[rank].draw(step)
            drivers[rank].step(them[rank].update, them[rank].adam)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


FULL = {"fragments": 3, "overlap": 2, "mix": 0.25, "outer_lr": 0.5, "outer_momentum": 0.5}
OPTIONS = [
    {},
    {"nesterov": False},
    {"outer_lr": 1, "outer_momentum": 0},
    {"fragments": 2},
    {"overlap": 3},
    {"overlap": 1, "mix": 0.5},
    FULL,
    {**FULL, "start": 5},
    {**FULL, "overrides": {"b*": {"outer_lr": 1.0, "nesterov": False}, "w": {"outer_lr": 0.25}}},
]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_local_steps_is_its_replay_bit_for_bit(workers, options):
    them, drivers = trained({"name": "local_steps", "every": 4, **options}, workers, 15)
    replays = [Worker(rank, workers) for rank in range(workers)]
    replay = LocalStepsReplay([worker.values for worker in replays], every=4, **options)
    for step in range(15):
        for worker in replays:
            worker.draw(step)
            worker.update()
        replay.after_step()
    for worker, expected in zip(them, replays):
        for name in SHAPES:
            np.testing.assert_array_equal(worker.values[name], expected.values[name])
    assert drivers[0].steps == 15
    for name in SHAPES:
        np.testing.assert_array_equal(drivers[0].state["anchor"][name], replay.anchor[name])


def test_fragments_take_turns_and_are_of_about_equal_size():
    (worker,), _ = trained({"name": "local_steps", "every": 4, "fragments": 2}, 1, 9)
    turns = [("difference.0", "w"), ("difference.1", "b", "bias")]
    assert worker.rounds == turns * 2


def test_training_goes_on_while_an_overlapped_round_is_under_way():
    """The averages of one step are applied in a later one, to parameters that have moved on."""
    options = {"name": "local_steps", "every": 4, "overlap": 2}
    before, after = (trained(options, 2, steps)[0] for steps in (5, 6))
    for name in SHAPES:
        assert not np.array_equal(before[0].values[name], before[1].values[name])
        np.testing.assert_array_equal(after[0].values[name], after[1].values[name])


@pytest.mark.parametrize("fragments", [1, 3])
def test_with_a_time_each_fragment_has_one_turn_in_each_interval(fragments):
    local_steps = algorithms.parse({"name": "local_steps", "every": "2 s", "fragments": fragments})
    worker = Worker(0, 1)
    state, turns = local_steps.begin(worker.values), []
    times = np.cumsum([0.0, *np.random.default_rng(3).uniform(0.1, 0.6, 60)])
    worker.draw(0)
    for number, seconds in enumerate(zip(times, times[1:]), 1):
        at = Step(number, worker.values, worker.grads, worker.update, NumPy(), seconds=seconds)
        rounds = local_steps.step(at, state)
        with suppress(StopIteration):
            turns.append((next(rounds).kind, seconds[1] // 2))
            rounds.send({})
    kinds = list(local_steps.rounds(SHAPES))
    intervals = int(times[-1] // 2)
    assert len(kinds) == fragments
    for shift, kind in enumerate(kinds, 1):  # the last fragment's turn is when an interval ends
        first = int(shift == fragments)
        expected = list(range(first, intervals))
        assert [interval for of, interval in turns if of == kind][: len(expected)] == expected


def test_a_time_needs_a_mailbox():
    with pytest.raises(ValueError, match=r"algorithm\['every'\] must be a number of steps without"):
        Driver(algorithms.parse({"name": "local_steps", "every": "60 s"}), Worker(0, 1))


@pytest.mark.parametrize("options", [{}, {"nesterov": False}, {"fragments": 2}], ids=str)
def test_a_missed_round_moves_the_anchor_as_on_others_and_keeps_own_changes(options):
    local_steps = algorithms.parse({"name": "local_steps", "every": 4, **options})
    absent, present = Worker(0, 2), Worker(1, 2)
    absent.draw(1)
    absent.update()
    before = {name: x.copy() for name, x in absent.values.items()}
    states = [local_steps.begin(Worker(0, 1).values) for _ in range(2)]
    mean = {name: np.float32(0.1) * x for name, x in before.items()}
    for _ in range(2):
        local_steps.missed(mean, absent.values, states[0])
        at = Step(1, present.values, {}, lambda: None, NumPy(), {"difference": lambda: mean})
        list(local_steps.step(at, states[1]))
    for name in SHAPES:
        for kind in local_steps.shared:
            np.testing.assert_array_equal(states[0][kind][name], states[1][kind][name])
        moved = states[0]["anchor"][name] - Worker(0, 1).values[name]
        np.testing.assert_allclose(absent.values[name] - before[name], moved, atol=1e-6)


AVERAGING = {"every": 1, "outer_lr": 1, "outer_momentum": 0}


@pytest.mark.parametrize("options", [AVERAGING, {**FULL, "start": 6}], ids=["averaging", "start"])
def test_averages_of_parameters_in_every_step_are_those_of_gradients(options):
    them, _ = trained({"name": "local_steps", **options}, 2, 6)
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


@pytest.mark.parametrize("options", [{}, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("stopped", [0, 4, 6, 7])
def test_a_driver_that_goes_on_from_a_checkpoint_gives_the_same_bits(stopped, options):
    algorithm, results = algorithms.parse({"name": "local_steps", "every": 3, **options}), []
    for stop in (None, stopped):
        worker = Worker(0, 1)
        worker.meet = dict
        driver = Driver(algorithm, worker)
        for step in range(9):
            if step == stop:
                saved, driver = driver, Driver(algorithm, worker)
                driver.go_on(saved.steps, saved.saved_state())
            worker.draw(step)
            driver.step(worker.update)
        assert driver.steps == 9
        results.append(worker.values)
    for name in SHAPES:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_the_first_steps_leave_the_outer_momentum_as_it_is():
    _, drivers = trained({"name": "local_steps", "every": 4, "start": 6}, 2, 7)
    for velocity in drivers[0].state["outer_momentum"].values():
        assert not velocity.any()


@pytest.mark.parametrize("options", [{}, {"overlap": 3}, {"start": 9}], ids=str)
def test_all_parameters_restart_from_their_anchors_after_a_round_that_fails(options):
    """A round of the other fragment, which is under way, is left out."""

    class Failing(Worker):
        fails = False

        def start(self, request):
            averages = super().start(request)
            return self.fail if self.fails else averages

        def fail(self):
            raise RuntimeError("a NaN")

    worker = Failing(0, 1)
    worker.meet = dict
    driver = Driver(
        algorithms.parse({"name": "local_steps", "every": 4, "fragments": 2, **options}), worker
    )

    def train(steps):
        for step in steps:
            worker.draw(step)
            driver.step(worker.update)

    train(range(3))
    worker.fails = True
    with pytest.raises(RuntimeError, match="a NaN"):
        train(range(3, 9))
    worker.fails = False
    anchors = {name: anchor.copy() for name, anchor in driver.state["anchor"].items()}
    for name, value in worker.values.items():
        np.testing.assert_array_equal(value, anchors[name])
    if "overlap" in options:  # the round of step 6 would arrive in step 9, and that of 8 in step 11
        train(range(7, 10))
        for name, anchor in driver.state["anchor"].items():
            np.testing.assert_array_equal(anchor, anchors[name])


@pytest.mark.parametrize(
    "now",
    [{"start": 20}, {"start": 8}, {"every": 1, "overlap": 0}, {"fragments": 2}],
    ids=str,
)
def test_an_average_under_way_arrives_before_the_rounds_of_a_resumed_run_with_other_options(now):
    """The round of step 5 would arrive in step 9, after new rounds had the same changes.

    As with every overlap, local steps since it began are lost: 6, 7 and 8.
    """
    options = {"name": "local_steps", "every": 5, "overlap": 4, "outer_lr": 1, "outer_momentum": 0}
    worker, plain = Worker(0, 1), Worker(0, 1)
    worker.meet = dict
    driver = Driver(algorithms.parse(options), worker)
    for step in range(9):
        if step == 7:
            saved, driver = driver, Driver(algorithms.parse({**options, **now}), worker)
            driver.go_on(saved.steps, saved.saved_state(), has_changed=True)
        worker.draw(step)
        driver.step(worker.update)
        if step not in (5, 6, 7):
            plain.draw(step)
            plain.update()
    for name, value in worker.values.items():
        np.testing.assert_allclose(value, plain.values[name], atol=1e-6)


def test_a_checkpoint_has_the_averages_that_are_still_to_arrive_and_says_when():
    worker = Worker(0, 1)
    worker.meet = dict
    driver = Driver(algorithms.parse({"name": "local_steps", "every": 3, "overlap": 2}), worker)
    for step in range(4):
        worker.draw(step)
        driver.step(worker.update)
    saved = driver.saved_state()
    assert set(saved) == {"anchor", "outer_momentum", "difference/average/5"}
    assert saved["difference/average/5"].keys() == SHAPES.keys()
    assert all(map(driver.is_shared, saved))


@pytest.mark.parametrize(
    "given, kind, said",
    [
        (3, TypeError, "algorithm must be None, a name or a dict, got 3"),
        ("local_step", ValueError, "did you mean 'local_steps'?"),
        ({"every": 3}, KeyError, "algorithm['name'] is missing"),
        ({"name": "local_steps", "evry": 3}, ValueError, "no option 'evry'; did you mean 'every'?"),
        ({"name": "local_steps", "every": 0}, ValueError, "algorithm['every'] must be a whole"),
        ({"name": "local_steps", "every": "3"}, ValueError, "or a time such as '60 s', got '3'"),
        (
            {"name": "local_steps", "every": "0 s"},
            ValueError,
            "or a time such as '60 s', got '0 s'",
        ),
        ({"name": "local_steps", "outer_momentum": 1}, ValueError, "from 0 to below 1, got 1"),
        (
            {"name": "local_steps", "every": 2, "overlap": 2},
            ValueError,
            "at least 3 with overlap 2",
        ),
        ({"name": "local_steps", "every": 2, "fragments": 3}, ValueError, "at least 3 with fragm"),
        ({"name": "local_steps", "every": 2, "sync_every": 3}, ValueError, "'sync_every' and 'eve"),
        ({"name": "local_steps", "overrides": {"w": 0.5}}, ValueError, "a dict of a dict for each"),
        (
            {"name": "local_steps", "overrides": {"w": {"every": 2}}},
            ValueError,
            "algorithm['overrides']['w'] may have outer_lr, outer_momentum, nesterov, got 'every'",
        ),
        (
            {"name": "local_steps", "overrides": {"w": {"outer_lr": -1}}},
            ValueError,
            "algorithm['overrides']['w']['outer_lr'] must be a number > 0, got -1",
        ),
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


def test_the_spellings_of_torchft_and_pytorch_are_taken():
    given = {"sync_every": 20, "fragment_sync_delay": 5, "fragment_update_alpha": 0.5}
    parsed = algorithms.parse({"name": "local_steps", **given, "start_localSGD_iter": 100})
    assert (parsed.every, parsed.overlap, parsed.mix, parsed.start) == (20, 5, 0.5, 100)


def test_options_that_do_not_fit_the_parameters_are_refused():
    worker = Worker(0, 1)
    options = {"name": "local_steps", "overrides": {"v*": {"outer_lr": 1.0}}}
    with pytest.raises(ValueError, match=r"\['overrides'\] has 'v\*', but there is no such param"):
        Driver(algorithms.parse(options), worker).declare()
    too_many = {"name": "local_steps", "fragments": 4}
    with pytest.raises(ValueError, match=r"at most the number of parameters, 3, got 4"):
        Driver(algorithms.parse(too_many), worker).declare()


@pytest.mark.parametrize("name", algorithms.registry)
def test_options_have_defaults_that_they_allow_and_a_line_of_help(name):
    kind = algorithms.registry[name]
    assert kind.description
    for key, option in kind.keys().items():
        assert option.meaning
        if key in kind.defaults():
            option.check(key, kind.defaults()[key], "algorithm")

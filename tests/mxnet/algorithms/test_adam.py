"""Algorithms that need Adam, on the real backends: all workers match NumPy replays."""

import numpy as np
import pytest

from tests.algorithm_replay import ZERO_ONE, ZeroOneAdamReplay
from tests.mxnet.algorithms.adam_replay import corrected, onebit_replay
from tests.mxnet.algorithms.test_algorithms import (
    COMPRESSIONS,
    ONEBIT,
    SHAPES,
    WHOLE,
    assert_weights,
    first_values,
    killed_and_resumed,
    mean_of,
    on_some_engines,
    start_cluster,
)
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run

ADAM = {"learning_rate": 0.01, "wd": 0.1, "beta2": 0.99}
FREEZE = {"name": "onebit_adam", "freeze_step": 6}
STEPS = 14


def ways(folder):
    """Arguments of `jobs.algorithms`: each compression, resumed before, at and after the freeze."""
    common = {"shapes": SHAPES, "steps": STEPS, "folder": folder, "optimizer": "adam"}
    common.update(optimizer_params=ADAM)
    settings = [
        *zip(COMPRESSIONS, (4, 6, 9), (1, 1, 1), 3 * (FREEZE,)),
        *zip(COMPRESSIONS, (3, 5, 11), (1, 1, 1), 3 * (ZERO_ONE,)),  # 11: between two averages
        (ONEBIT, 7, 2, FREEZE),
        (ONEBIT, 11, 2, ZERO_ONE),
    ]
    names = ("compression_params", "middle", "contexts", "algorithm")
    return [{**common, **dict(zip(names, values))} for values in settings]


def replayed(way, workers, local_size, chunk=WHOLE):
    """Return the final parameters and first moments of each worker."""
    compressed = mean_of(way["compression_params"], workers, local_size, chunk)
    plain = mean_of(None, workers, local_size)

    def mean(kind, name, vectors):
        return (plain if kind == "gradient" else compressed)(kind, name, vectors)

    if way["algorithm"] is FREEZE:
        expected = onebit_replay(first_values(), 6, mean, **ADAM)
    else:
        values = [first_values() for _ in range(workers)]
        settings = {"betas": (0.9, 0.99), "lr": 0.01, "coupled": 0.1}
        expected = ZeroOneAdamReplay(values, corrected, mean=mean, **settings)
    for step in range(STEPS):
        of_workers = [gradients_of(rank, step, SHAPES) for rank in range(workers)]
        factor = np.float32(way["contexts"])
        expected.step([dict(zip(expected.v, [factor * g for g in own])) for own in of_workers])
    if way["algorithm"] is FREEZE:
        return [(expected.x, expected.m)] * workers
    return list(zip(expected.workers, expected.m))


@on_some_engines
def test_algorithms_give_the_replays_weights_and_go_on_bit_for_bit(
    tmp_path, start, local_size, chunk
):
    arguments = ways(str(tmp_path))
    results = start("algorithms", arguments)
    for number, way in enumerate(arguments):
        expected = replayed(way, len(results), local_size, chunk)
        for result, (x, m) in zip(results, expected):
            assert_weights(result, number, way["contexts"], x)
            for i in range(len(SHAPES)):
                np.testing.assert_array_equal(result[f"{number}m{i}"], m[f"p{i}"])


def test_what_is_killed_goes_on_bit_for_bit_in_new_processes(tmp_path):
    arguments = ways(str(tmp_path))[: 2 * len(COMPRESSIONS)]
    results = killed_and_resumed(tmp_path, start_cluster, 2, arguments)
    for number, way in enumerate(arguments):
        expected = replayed(way, 2, 1)
        for result, (x, _) in zip(results, expected):
            for i in range(len(SHAPES)):
                np.testing.assert_array_equal(result[f"{number}w{i}"], x[f"p{i}"])


@pytest.mark.parametrize("bad", [2, 9])
def test_all_workers_skip_the_step_in_which_one_has_a_nan(bad):
    job = {"shapes": SHAPES, "steps": 12, "algorithm": FREEZE, "compression_params": ONEBIT}
    for result in run("nonfinite_with_adam", {**job, "bad": bad}):
        for i in range(len(SHAPES)):
            assert np.isfinite(result[f"skipped/{i}"]).all()
            np.testing.assert_array_equal(result[f"skipped/{i}"], result[f"expected/{i}"])

"""Algorithms that need Adam, on the real backends: all workers match NumPy replays."""

import numpy as np
import pytest

import gluon_gc as bps
from tests.algorithm_replay import ZERO_ONE, ZeroOneAdamReplay
from tests.mxnet.algorithms.adam_replay import corrected, onebit_replay
from tests.mxnet.algorithms.test_algorithms import (
    COMPRESSIONS,
    ONEBIT,
    SHAPES,
    WHOLE,
    assert_weights,
    first_values,
    mean_of,
    on_nodes,
    trained,
)
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import on_workers, run
from tests.mxnet.exchange.test_two_way import CHUNK

ADAM = {"learning_rate": 0.01, "wd": 0.1, "beta2": 0.99}
FREEZE = {"name": "onebit_adam", "freeze_step": 6}
STEPS = 14
# Each compression, resumed before, at and after the freeze, and between two averages.
SETTINGS = [
    *zip(COMPRESSIONS, (4, 6, 9), (1, 1, 1), 3 * (FREEZE,)),
    *zip(COMPRESSIONS, (3, 5, 11), (1, 1, 1), 3 * (ZERO_ONE,)),
    (ONEBIT, 7, 2, FREEZE),
    (ONEBIT, 11, 2, ZERO_ONE),
]
WAYS = [
    {
        "shapes": SHAPES,
        "steps": STEPS,
        "optimizer": "adam",
        "optimizer_params": ADAM,
        "compression_params": compression_params,
        "middle": middle,
        "contexts": contexts,
        "algorithm": algorithm,
    }
    for compression_params, middle, contexts, algorithm in SETTINGS
]


def replayed(way, workers, local_size, chunk=WHOLE):
    """Return the final parameters and first moments of each worker."""
    compressed = mean_of(way["compression_params"], workers, local_size, chunk)
    plain = mean_of(None, workers, local_size)

    def mean(kind, name, vectors):
        return (plain if kind == "gradient" else compressed)(kind, name, vectors)

    if way["algorithm"] == FREEZE:
        expected = onebit_replay(first_values(), 6, mean, **ADAM)
    else:
        values = [first_values() for _ in range(workers)]
        settings = {"betas": (0.9, 0.99), "lr": 0.01, "coupled": 0.1}
        expected = ZeroOneAdamReplay(values, corrected, mean=mean, **settings)
    for step in range(STEPS):
        of_workers = [gradients_of(rank, step, SHAPES) for rank in range(workers)]
        factor = np.float32(way["contexts"])
        expected.step([dict(zip(expected.v, [factor * g for g in own])) for own in of_workers])
    if way["algorithm"] == FREEZE:
        return [(expected.x, expected.m)] * workers
    return list(zip(expected.workers, expected.m))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "start, local_size, chunk", [(run, 1, WHOLE), (on_nodes, 2, CHUNK)], ids=["servers", "nodes"]
)
def test_algorithms_give_the_replays_weights_and_go_on_bit_for_bit(
    tmp_path, start, local_size, chunk, way
):
    results = start(trained, {**way, "file": str(tmp_path / "states")})
    for result, (x, m) in zip(results, replayed(way, len(results), local_size, chunk)):
        assert_weights(result, x)
        for i in range(len(SHAPES)):
            np.testing.assert_array_equal(result[2][i], m[f"p{i}"])


def trained_with_a_nan(bad, on_nonfinite):
    """Return the weights; worker 1 has a NaN in step `bad`, which "raise" leaves out."""
    params = parameters(SHAPES)
    trainer = bps.DistributedTrainer(
        params,
        "adam",
        {"learning_rate": 0.01},
        compression_params=ONEBIT,
        algorithm=FREEZE,
        on_nonfinite=on_nonfinite,
    )
    for step in range(12):
        values = gradients_of(bps.rank(), step, SHAPES)
        if step == bad:
            if on_nonfinite == "raise":
                continue
            if bps.rank() == 1:
                values[-1].flat[0] = np.nan
        backward(params, values)
        trainer.step(1)
    return [param.data().asnumpy() for param in params]


@pytest.mark.parametrize("bad", [2, 9])
@on_workers(2)
def test_all_workers_skip_the_step_in_which_one_has_a_nan(bad):
    for ours, expected in zip(trained_with_a_nan(bad, "skip"), trained_with_a_nan(bad, "raise")):
        assert np.isfinite(ours).all()
        np.testing.assert_array_equal(ours, expected)

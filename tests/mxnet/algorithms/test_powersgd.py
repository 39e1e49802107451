"""powersgd on the real backends: the weights of all workers match its NumPy replay."""

import numpy as np
import pytest

from tests.algorithm_replay import PowerSGDReplay
from tests.mxnet.algorithms.test_algorithms import (
    RATE,
    SGD,
    SHAPES,
    WHOLE,
    assert_weights,
    first_values,
    mean_of,
    on_some_engines,
    trained,
)
from tests.mxnet.cluster.jobs import gradients_of

STEPS = 8
# The rank, the start, the step of the checkpoint (in the first steps, just after them, or later),
# the number of contexts, and the number of elements from which on there are two parts.
SETTINGS = [(1, 0, 3, 1, 2**20), (2, 2, 2, 1, 0), (2, 2, 1, 1, 2**20), (2, 0, 5, 2, 0)]
WAYS = [
    {
        "shapes": SHAPES,
        "steps": STEPS,
        "compression_params": None,
        "algorithm": {"name": "powersgd", "rank": rank, "start": start},
        "middle": middle,
        "contexts": contexts,
        "divided": divided,
        **SGD,
    }
    for rank, start, middle, contexts, divided in SETTINGS
]


def replayed(way, workers, local_size, chunk=WHOLE):
    """Return the final weights, which all workers share."""
    values = first_values()
    shapes = dict(zip(values, SHAPES))
    mean = mean_of(None, workers, local_size, chunk)
    rank, start = way["algorithm"]["rank"], way["algorithm"]["start"]
    replay = PowerSGDReplay(shapes, workers, rank, start, mean=mean)
    for step in range(STEPS):
        given = [
            [np.float32(way["contexts"]) * g for g in gradients_of(worker, step, SHAPES)]
            for worker in range(workers)
        ]
        for name, average in replay.step([dict(zip(values, own)) for own in given]).items():
            values[name] -= np.float32(RATE) * average
    return values


@pytest.mark.parametrize("way", WAYS)
@on_some_engines
def test_powersgd_gives_the_replays_weights_and_goes_on_bit_for_bit(
    tmp_path, start, local_size, chunk, way
):
    results = start(trained, {**way, "file": str(tmp_path / "states")})
    expected = replayed(way, len(results), local_size, chunk)
    for result in results:
        assert_weights(result, expected)

"""dithering in a trainer: the workers' random draws, and the bytes sent."""

import numpy as np
import pytest

from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_two_way import arguments, assert_identical, check_replay
from tests.mxnet.trainer.test_trainer import backward, make


@pytest.mark.parametrize("kind", ["dithering", "natural dithering l2"])
def test_messages_of_several_rows_agree_with_a_numpy_replay(kind):
    options = arguments(kind, "corrected", shapes=[(40_000,)], steps=3)
    results = run("steps", options, workers=2, servers=1)
    check_replay(results, options)
    assert_identical(results)


def test_workers_agree_without_a_seed():
    options = {
        "compression_params": {"compressor": "dithering", "k": 1},
        "sizes": [2000],
        "value": 0.5,
    }
    first, second = run("equal_gradients", options, workers=2, servers=1)
    np.testing.assert_array_equal(first["g0"], second["g0"])
    assert set(np.unique(first["g0"])) == {0, 1}
    assert abs(first["g0"].mean() - 0.5) < 0.06  # five standard errors


def test_stats_count_the_bytes_in_use():
    params = {"compressor": "dithering", "k": 2, "normalize": "l2"}
    parameters, trainer = make([(50_000,)], {"learning_rate": 1.0}, params)
    for step in range(3):
        random = np.random.default_rng(step)
        backward(parameters, [random.standard_normal(50_000).astype(np.float32)])
        trainer.step(1)
    stats = trainer.compression_stats()["total"]
    assert 0 < stats["pushed_bytes"] < 0.1 * 50_000 * 3 / 8
    assert 0 < stats["pulled_bytes"] < 0.1 * 50_000 * 3 / 8
    assert stats["bits_per_element"] == pytest.approx(8 * stats["pushed_bytes"] / 50_000)
    assert min(stats[f"{part}_seconds"] for part in ("compress", "wait", "decompress")) > 0

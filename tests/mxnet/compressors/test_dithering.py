"""dithering in a trainer: the workers' random draws, and the bytes sent."""

import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import assert_same_on_all_workers, backward, make, parameters
from tests.mxnet.cluster.standing import on_workers


@on_workers(2)
def test_workers_agree_without_a_seed():
    (param,) = params = parameters([(2000,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", compression_params={"compressor": "dithering", "k": 1}
    )
    backward(params, [np.append(np.float32(1), np.full(1999, 0.5, np.float32))])
    trainer.step(1)
    gradient = param.grad().asnumpy()
    assert_same_on_all_workers(gradient)
    assert set(np.unique(gradient)) == {0, 1}
    assert abs(gradient.mean() - 0.5) < 0.06  # five standard errors


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


def test_equal_gradients_are_exact_with_bytegrad_and_take_no_bytes_on_the_wire():
    parameters, trainer = make([(50_000,)], {"learning_rate": 1.0}, {"compressor": "bytegrad"})
    backward(parameters, [np.full(50_000, 0.1, np.float32)])
    trainer.step(1)
    np.testing.assert_array_equal(parameters[0].grad().asnumpy(), np.float32(0.1))
    stats = trainer.compression_stats()["total"]
    assert stats["pushed_bytes"] == stats["pulled_bytes"] == 12

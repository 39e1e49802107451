"""NaNs and infinities in gradients: who hears of them, and what they leave behind."""

import mxnet as mx
import numpy as np
import pytest

from tests.compressors import COMPRESSORS
from tests.distributed.cluster import run
from tests.test_trainer import backward, make

N = 500
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
BAD = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


@pytest.fixture(params=COMPRESSORS)
def compression(request):
    return {**COMPRESSORS[request.param], "ef": "vanilla", "momentum": "nesterov"}


def trained(compression, on_nonfinite):
    optimizer_params = {"learning_rate": 0.1, "momentum": 0.9}
    params, trainer = make([(N,)], optimizer_params, compression, on_nonfinite=on_nonfinite)
    return params, trainer


def gradient(step, bad=None):
    values = np.random.default_rng(step).standard_normal(N).astype(np.float32)
    if bad is not None:
        values[7] = bad
    return [values]


@BAD
def test_it_is_raised_by_parameter_and_step(compression, bad):
    params, trainer = trained(compression, "raise")
    for step in range(2):
        backward(params, gradient(step))
        trainer.step(1)
    backward(params, gradient(2, bad))
    trainer.step(1)
    with pytest.raises(
        mx.MXNetError, match="the gradient of p0 has a NaN or an infinity in step 3"
    ):
        params[0].data().asnumpy()


@BAD
def test_a_step_that_is_skipped_changes_no_weight_and_what_follows_starts_from_zero(
    compression, bad
):
    params, trainer = trained(compression, "skip")
    for step in range(2):
        backward(params, gradient(step))
        trainer.step(1)
    before = params[0].data().asnumpy()
    backward(params, gradient(2, bad))
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), before)
    state = trainer._store.state(trainer._names())
    for node in ("worker", "aggregator"):
        for name in ("residual", "momentum"):
            assert not np.any(state[0].get(node, {}).get(name, 0))
    backward(params, gradient(3))
    trainer.step(1)
    after = params[0].data().asnumpy()
    assert np.isfinite(after).all() and (after != before).any()


@BAD
def test_it_is_propagated_on_request(compression, bad):
    params, trainer = trained(compression, "propagate")
    backward(params, gradient(0, bad))
    trainer.step(1)
    assert not np.isfinite(params[0].grad().asnumpy()).all()


def test_skipping_counts_uncompressed_gradients_too():
    params, trainer = trained(None, "skip")
    backward(params, gradient(0, np.nan))
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), np.ones(N))
    backward(params, gradient(1))
    trainer.step(1)
    assert (params[0].data().asnumpy() != 1).any()


def test_all_workers_raise_what_one_of_them_has(tmp_path):
    arguments = {"compression_params": ONEBIT, "on_nonfinite": "raise"}
    for result in run(tmp_path, "nonfinite", arguments, workers=2):
        assert "the gradient of p0 has a NaN or an infinity in step 2" in str(result["raised"])


@pytest.mark.parametrize("params", [None, ONEBIT], ids=["uncompressed", "onebit"])
def test_all_workers_skip_what_one_of_them_has(tmp_path, params):
    arguments = {"compression_params": params, "on_nonfinite": "skip"}
    for result in run(tmp_path, "nonfinite", arguments, workers=2):
        np.testing.assert_array_equal(result["w0"], np.zeros(64))
        np.testing.assert_array_equal(result["w1"], result["w0"])
        np.testing.assert_allclose(result["w2"], -np.ones(64))


def test_another_wish_is_refused():
    with pytest.raises(ValueError, match="on_nonfinite must be one of .*, got 'ignore'"):
        trained(None, "ignore")

"""max_grad_norm clips each worker's own gradient by its norm over all parameters."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc import kernels
from tests.compressors import COMPRESSORS
from tests.mxnet.cluster.jobs import backward, gradients_of, make
from tests.mxnet.cluster.standing import run, run_horovod
from tests.mxnet.exchange.test_two_way import assert_identical, steps

SHAPES = [(3, 4), (5,), (2, 2, 2)]
SGD = {"learning_rate": 1.0}


def gradients(seed, size=1.0):
    random = np.random.default_rng(seed)
    return [(size * random.standard_normal(shape)).astype(np.float32) for shape in SHAPES]


def norm_of(arrays):
    return np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in arrays))


def averaged(params, trainer, values, batch_size=1):
    """Return the change of the parameters in one step."""
    before = [param.data().asnumpy() for param in params]
    backward(params, values)
    trainer.step(batch_size)
    return [old - param.data().asnumpy() for old, param in zip(before, params)]


@pytest.mark.parametrize("contexts, batch_size", [(1, 1), (2, 1), (1, 8)])
def test_the_norm_over_all_parameters_is_that_of_the_sum_over_contexts_and_the_batch(
    contexts, batch_size
):
    params, trainer = make(SHAPES, SGD, contexts=contexts, max_grad_norm=0.5)
    values = gradients(0)
    whole = [contexts * value / batch_size for value in values]
    norm = norm_of(whole)
    assert norm > 0.5
    for taken, value in zip(averaged(params, trainer, values, batch_size), whole):
        np.testing.assert_allclose(taken, value * 0.5 / norm, rtol=1e-5, atol=1e-6)


def test_what_is_small_is_not_touched():
    values = gradients(1, 0.01)
    (one, plain), (other, clipping) = make(SHAPES, SGD), make(SHAPES, SGD, max_grad_norm=1.0)
    for a, b in zip(averaged(one, plain, values), averaged(other, clipping, values)):
        np.testing.assert_array_equal(a, b)


def test_float16_and_float64_count_alike():
    params = []
    for i, dtype in enumerate(["float16", "float32", "float64"]):
        param = mx.gluon.Parameter(f"p{i}", shape=(4,), dtype=dtype)
        param.initialize(mx.init.Zero())
        params.append(param)
    trainer = bps.DistributedTrainer(params, "sgd", SGD, kvstore="local", max_grad_norm=1.0)
    with mx.autograd.record():
        losses = [(2 * param.data()).sum() for param in params]  # twelve elements in all
    mx.autograd.backward(losses)
    trainer.step(1)
    for param in params:
        expected = -1 / np.sqrt(12)
        np.testing.assert_allclose(param.data().asnumpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("compression_params", COMPRESSORS.values(), ids=list(COMPRESSORS))
def test_a_compressor_gets_the_clipped_gradient(compression_params):
    optimizer = {**SGD, "momentum": 0.9} if "momentum" in compression_params else SGD
    clipped, expected = (
        make(SHAPES, optimizer, compression_params, max_grad_norm=most) for most in (0.5, None)
    )
    for step in range(4):
        values = gradients(step)
        squares = sum(kernels.sum_of_squares(value) for value in values)
        by_hand = [value * np.float32(0.5 / np.sqrt(squares)) for value in values]
        for a, b in zip(averaged(*clipped, values), averaged(*expected, by_hand)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error_that_names_its_parameter(bad):
    params, trainer = make(SHAPES, SGD, max_grad_norm=0.5)
    values = gradients(0)
    values[1][2] = bad
    with pytest.raises(mx.MXNetError, match="gradient of p1 has a NaN or an infinity"):
        averaged(params, trainer, values)
        mx.nd.waitall()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_is_skipped_keeps_the_residuals_of_other_parameters(bad):
    compression = {"compressor": "topk", "k": 0.2, "ef": "vanilla"}
    plain, clipped = (
        make(SHAPES, SGD, compression, max_grad_norm=most, on_nonfinite="skip")
        for most in (None, 1e6)
    )
    for step in range(4):
        values = gradients(step)
        if step == 2:
            values[0][1, 1] = bad
        for a, b in zip(averaged(*plain, values), averaged(*clipped, values)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "given, error, message",
    [
        (0, ValueError, "max_grad_norm must be > 0 and finite, got 0"),
        (-1.0, ValueError, "max_grad_norm must be > 0 and finite, got -1.0"),
        (float("nan"), ValueError, "max_grad_norm must be > 0 and finite, got nan"),
        ("1", TypeError, r"max_grad_norm must be a number, got '1' \(str\)"),
        (True, TypeError, r"max_grad_norm must be a number, got True \(bool\)"),
    ],
)
def test_a_wrong_norm_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        make(SHAPES, SGD, max_grad_norm=given)


MAX_NORM, WORKERS = 0.5, 4
EXACT = {"compressor": "topk", "k": 10**6, "ef": "vanilla"}
NODES = {**EXACT, "hierarchical": True}


def on_servers(options):
    return run(steps, options, WORKERS)


def on_nodes(options):
    return run_horovod(steps, options, WORKERS, {"BYTEPS_LOCAL_SIZE": 2})


@pytest.mark.parametrize(
    "start, params",
    [(on_servers, {}), (on_servers, EXACT), (on_nodes, {}), (on_nodes, EXACT), (on_nodes, NODES)],
)
def test_each_worker_clips_its_own_gradient(start, params):
    options = {"shapes": SHAPES, "steps": 1, "compression_params": params, "optimizer_params": SGD}
    results = start({**options, "trainer": {"max_grad_norm": MAX_NORM}})
    assert_identical(results)
    clipped = []
    for rank in range(WORKERS):
        own = gradients_of(rank, 0, SHAPES)
        assert norm_of(own) > MAX_NORM
        clipped.append([g * (MAX_NORM / norm_of(own)) for g in own])
    for i, of_workers in enumerate(zip(*clipped)):
        average, pushed = sum(of_workers) / WORKERS, results[0][f"g{i}_0"]
        np.testing.assert_allclose(pushed, average, rtol=1e-5, atol=1e-7)

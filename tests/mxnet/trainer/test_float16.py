"""float16 parameters with master weights: averages that are too small for float16 are not lost."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import Parameter, Trainer

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward
from tests.mxnet.cluster.standing import on_workers

N, BATCH, LOSS_SCALE = 64, 1000, 128.0
SGD = {"learning_rate": 1e4, "rescale_grad": 1 / LOSS_SCALE, "multi_precision": True}
ALL = {"compressor": "topk", "k": N, "ef": "vanilla"}  # loses nothing
MOMENTUM = {**ALL, "momentum": "nesterov"}


def made(dtypes, optimizer, compression, contexts=1, value=0.0, **more):
    params = []
    for i, dtype in enumerate(dtypes):
        params.append(Parameter(f"p{i}", shape=(N,), dtype=dtype))
        params[-1].initialize(mx.init.Constant(value), ctx=list(map(mx.cpu, range(contexts))))
    trainer = bps.DistributedTrainer(
        params, "sgd", optimizer, compression_params=compression, **more
    )
    return params, trainer


def average(step):
    """A sample's average gradient, which is smaller than the smallest float16, 6e-8."""
    return 1e-9 * (0.5 + np.random.default_rng(step).random(N))


def make_step(params, trainer, gradient, batch_size=BATCH, loss_scale=LOSS_SCALE):
    value = gradient * batch_size * loss_scale / len(params[0].list_ctx())
    backward(params, [value] * len(params))
    trainer.step(batch_size)


def weights_of(trainer, params):
    """The weights, in float32 if the optimizer keeps them so."""
    states = trainer._updaters[0].states
    weights = [
        states[i][-1] if param.dtype == "float16" else param.data()
        for i, param in enumerate(params)
    ]
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("compression", [None, ALL], ids=["uncompressed", "compressed"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_small_gradients_change_the_weights_as_gluon_trainer_does(compression, contexts):
    dtypes = ["float16", "float32", "float16"]
    params, trainer = made(dtypes, SGD, compression, contexts, kvstore="local")
    alone, other = made(["float32"], SGD, compression, contexts, kvstore="local")
    gluon, _ = made(["float16"], SGD, None, contexts, kvstore="local")
    plain = Trainer(gluon, "sgd", SGD, kvstore="device", update_on_kvstore=False)
    for step in range(4):
        make_step(params, trainer, average(step))
        make_step(alone, other, average(step))
        make_step(gluon, plain, average(step))
    first, single, last = weights_of(trainer, params)
    np.testing.assert_array_equal(single, *weights_of(other, alone))
    np.testing.assert_allclose(single, -1e4 * sum(map(average, range(4))), rtol=1e-5)
    np.testing.assert_allclose(first, single, rtol=1e-3)
    np.testing.assert_allclose(first, *weights_of(plain, gluon), rtol=1e-3)
    np.testing.assert_array_equal(first, last)


@pytest.mark.parametrize("minimum", [0, 1000], ids=["compressed", "uncompressed"])
def test_momentum_keeps_small_gradients_and_the_decay_of_small_weights(minimum, monkeypatch):
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", str(minimum))
    optimizer = {**SGD, "learning_rate": 1.0, "momentum": 0.9, "wd": 1e-5}
    changes = []
    for dtype in ("float16", "float32"):
        params, trainer = made([dtype], optimizer, MOMENTUM, value=2.0**-13, kvstore="local")
        for step in range(20):
            make_step(params, trainer, average(step), batch_size=BATCH - 600 * (step == 10))
        (weights,) = weights_of(trainer, params)
        changes.append(weights - np.float32(2.0**-13))
    np.testing.assert_allclose(*changes, rtol=2e-3)


def test_the_loss_scale_of_amp_may_change_and_leaves_room_for_momentum():
    optimizer = {**SGD, "rescale_grad": 1.0, "momentum": 0.9}
    pairs = [
        made([dtype], optimizer, MOMENTUM, kvstore="local") for dtype in ("float16", "float32")
    ]
    # 2**15 * BATCH would overflow, and so would ten times 2**5 * BATCH.
    for loss_scale, size in [(2.0**15, 1e-9), *[(2.0**5, 1.0)] * 10]:
        for params, trainer in pairs:
            trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
            trainer._scale = 1 / loss_scale
            make_step(params, trainer, np.full(N, size), loss_scale=loss_scale)
        half, single = (weights_of(trainer, params) for params, trainer in pairs)
        np.testing.assert_allclose(half, single, rtol=1e-3)


def test_a_report_compares_averages_of_the_same_unit():
    params, trainer = made(["float16"], SGD, None, kvstore="local")
    reporter = bps.report(trainer, every=1, measure_error=1)
    make_step(params, trainer, average(0))
    assert reporter.last.error < 1e-3


@on_workers(2, "servers", "machine")
def test_workers_with_different_batch_sizes_keep_equal_weights():
    for compression in (None, ALL):
        params, trainer = made(["float16"], SGD, compression)
        for step in range(3):
            make_step(params, trainer, average(2 * step + bps.rank()), [BATCH, 300][bps.rank()])
        (weights,) = weights_of(trainer, params)
        total = bps.allreduce(mx.nd.array(weights), average=False).asnumpy()
        np.testing.assert_array_equal(total, 2 * weights)
        np.testing.assert_allclose(weights, -5e3 * sum(map(average, range(6))), rtol=2e-3)

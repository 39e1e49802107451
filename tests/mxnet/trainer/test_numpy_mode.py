"""NumPy mode (`mx.npx.set_np()`) trains like the legacy arrays, bit for bit."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_two_way import assert_equal, steps

SHAPES = [(3, 4), (5,)]
MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov"}


@pytest.fixture
def numpy_mode():
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def parameters(contexts=1):
    params = []
    for i, shape in enumerate(SHAPES):
        params.append(mx.gluon.Parameter(f"p{i}", shape=shape))
        params[-1].initialize(mx.init.One(), ctx=[mx.cpu(c) for c in range(contexts)])
    return params


def train(params, trainer, array, steps=4):
    """Train on known gradients, created by `array`; returns the weights."""
    for step in range(steps):
        random = np.random.default_rng(step)
        values = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
        with mx.autograd.record():
            losses = [
                (param.data(ctx) * array(value, ctx=ctx)).sum()
                for param, value in zip(params, values)
                for ctx in param.list_ctx()
            ]
        mx.autograd.backward(losses)
        trainer.step(1)
    return [param.data().asnumpy() for param in params]


CASES = pytest.mark.parametrize(
    "compression_params, contexts, more",
    [
        (ONEBIT, 1, {}),
        (ONEBIT, 2, {"max_grad_norm": 1.0}),
        ({"fp16": True}, 1, {}),
        ({"compressor": "topk", "k": 2, "ef": "vanilla"}, 2, {"on_nonfinite": "skip"}),
        ({"compressor": "topk", "k": 2}, 2, {"algorithm": {"name": "local_steps", "every": 2}}),
    ],
)


def trained(array, compression_params, contexts, more):
    params = parameters(contexts)
    trainer = bps.DistributedTrainer(
        params, "sgd", MOMENTUM, compression_params=compression_params, kvstore="local", **more
    )
    return train(params, trainer, array)


@CASES
def test_weights_are_those_of_legacy_arrays(compression_params, contexts, more):
    case = compression_params, contexts, more
    legacy = trained(mx.nd.array, *case)
    mx.npx.set_np()
    try:
        arrays = trained(mx.np.array, *case)
    finally:
        mx.npx.reset_np()
    for a, b in zip(arrays, legacy):
        np.testing.assert_array_equal(a, b)


def test_checkpoints(numpy_mode, tmp_path):
    params, again = parameters(), parameters()
    one, other = (
        bps.DistributedTrainer(p, "sgd", MOMENTUM, compression_params=ONEBIT, kvstore="local")
        for p in (params, again)
    )
    train(params, one, mx.np.array)
    one.save_states(str(tmp_path / "states"))
    train(again, other, mx.np.array, steps=1)
    other.load_states(str(tmp_path / "states"))
    for a, b in zip(params, again):
        b.set_data(a.data())
    for a, b in zip(*(train(*pair, mx.np.array) for pair in [(params, one), (again, other)])):
        np.testing.assert_array_equal(a, b)


def test_a_plain_trainer_with_our_store(numpy_mode):
    store = mx.kv.create("GluonGCLocal")
    store.set_gradient_compression({"compressor": "topk", "k": 100})
    params = parameters(contexts=2)
    trainer = mx.gluon.Trainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store)
    weights = train(params, trainer, mx.np.array, steps=1)
    random = np.random.default_rng(0)
    for weight, shape in zip(weights, SHAPES):
        gradient = random.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(weight, 1 - 2 * gradient, rtol=1e-6)


def in_numpy_mode(**options):
    """Run `steps` in NumPy mode, and sum rank + 1 over all workers."""
    mx.npx.set_np()
    try:
        flag = mx.np.full((3,), bps.rank() + 1.0)
        bps.byteps_push_pull(flag, name="flag", is_average=False)
        np.testing.assert_array_equal(flag.asnumpy(), 3.0)
        return steps(**options)
    finally:
        mx.npx.reset_np()


def test_two_workers_and_a_server():
    job = {"shapes": SHAPES, "steps": 3}
    job.update(compression_params=ONEBIT, optimizer_params=MOMENTUM)
    for ours, legacy in zip(run(in_numpy_mode, job), run(steps, job)):
        assert_equal(ours, legacy)


def test_a_metric_stays_an_array_of_mxnet_numpy(numpy_mode):
    bps.init()
    try:
        value = mx.np.array([[0.5, 2.0]], dtype="float32")
        result = bps.allreduce(value)
    finally:
        bps.shutdown()
    assert type(result) is mx.np.ndarray and result is not value
    assert result.dtype == np.float32 and result.asnumpy().tolist() == [[0.5, 2.0]]

"""Nesterov momentum before an exact compressor equals Nesterov SGD, including weight decay.

The expected values use the formula that MXNet documents for its optimizer "nag". MXNet's kernel
differs from that formula in two ways. It multiplies the learning rate into the momentum, so a new
rate does not apply to old momentum. And its momentum decays the weight that is already updated. A
NumPy version of the kernel confirms that these explain the whole difference: with wd 1e-4 and one
rate, 3e-5 of the weights after 20 steps.
"""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.mxnet.trainer.momentum import Momentum

EXACT = {"compressor": "topk", "k": 10**9, "ef": "vanilla", "momentum": "nesterov"}
# These numbers are exact in MXNet's float32 options, so float64 can be compared to its own eps.
MU, WD = 0.875, 0.0625
RATES = [0.125] * 5 + [0.0625] * 5 + [0.25] * 10
STEPS = len(RATES)
BATCH_SIZE = 4
SHAPES = [(40, 5), (3,), (30,), (120,)]  # compressed, too small, excluded, compressed
MIN_COMPRESS_BYTES = 100
WD_MULTS = [1.0, 3.0, 0.5, 0.0]
LR_MULTS = [0.5, 2.0, 0.5, 1.0]


def nesterov_sgd(x, gradients, rates=RATES, mu=MU, wd=WD):
    """Return the float64 weight after one step per gradient; `wd` may be one number per step."""
    x, m = np.array(x, np.float64), 0.0
    for g, rate, decay in zip(gradients, rates, np.broadcast_to(wd, STEPS)):
        g = g.astype(np.float64) + decay * x
        m = mu * m + g
        x = x - rate * (g + mu * m)
    return x


def assert_equal_to_rounding(ours, expected, dtype="float32"):
    """Allow the rounding of a few sums per step, of numbers as large as the largest weight."""
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(ours, expected, rtol=0, atol=STEPS * eps * abs(expected).max())


def gradients_of(parameter, dtype="float32"):
    random = np.random.RandomState(parameter)
    return [random.standard_normal(SHAPES[parameter]).astype(dtype) for _ in range(STEPS)]


def make(optimizer_params, dtype="float32", contexts=1, kvstore="local"):
    parameters = []
    for i, shape in enumerate(SHAPES):
        parameter = mx.gluon.Parameter(f"p{i}", shape=shape, dtype=dtype, wd_mult=WD_MULTS[i])
        parameter.initialize(mx.init.One(), ctx=[mx.cpu(c) for c in range(contexts)])
        parameters.append(parameter)
    parameters[2].compression_params = None
    trainer = bps.DistributedTrainer(
        parameters, "sgd", optimizer_params, compression_params=EXACT, kvstore=kvstore
    )
    return parameters, trainer


def backward(parameters, step, dtype="float32"):
    with mx.autograd.record():
        losses = [
            (data * mx.nd.array(gradients_of(i)[step], ctx=data.context, dtype=dtype)).sum()
            for i, parameter in enumerate(parameters)
            for data in parameter.list_data()
        ]
    mx.autograd.backward(losses)


def options(**more):
    return {"learning_rate": RATES[0], "momentum": MU, "wd": WD, **more}


@pytest.fixture(autouse=True)
def small_tensors_travel_uncompressed(monkeypatch):
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", str(MIN_COMPRESS_BYTES))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_every_tensor_follows_nesterov_sgd_through_weight_decay_and_rate_changes(dtype, contexts):
    parameters, trainer = make(options(), dtype=dtype, contexts=contexts)
    for parameter, lr_mult in zip(parameters, LR_MULTS):
        parameter.lr_mult = lr_mult
    for step, rate in enumerate(RATES):
        trainer.set_learning_rate(rate)
        backward(parameters, step, dtype)
        trainer.step(BATCH_SIZE * contexts)
    for i, parameter in enumerate(parameters):
        gradients = [g / BATCH_SIZE for g in gradients_of(i)]
        rates = np.multiply(RATES, LR_MULTS[i])
        expected = nesterov_sgd(np.ones(SHAPES[i]), gradients, rates, wd=WD * WD_MULTS[i])
        for data in parameter.list_data():
            assert_equal_to_rounding(data.asnumpy(), expected, dtype)


def test_a_learning_rate_scheduler_and_a_step_in_two_halves_change_nothing():
    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[5, 10], factor=0.5, base_lr=RATES[0])
    parameters, trainer = make(options(lr_scheduler=schedule))
    for step in range(STEPS):
        backward(parameters, step)
        trainer.allreduce_grads()
        trainer.update(BATCH_SIZE)
    rates = [RATES[0]] * 5 + [RATES[0] / 2] * 5 + [RATES[0] / 4] * (STEPS - 10)
    for i, parameter in enumerate(parameters):
        gradients = [g / BATCH_SIZE for g in gradients_of(i)]
        expected = nesterov_sgd(np.ones(SHAPES[i]), gradients, rates, wd=WD * WD_MULTS[i])
        assert_equal_to_rounding(parameter.data().asnumpy(), expected)


def test_without_weight_decay_and_with_one_rate_it_is_mxnets_nag():
    parameters, trainer = make(options(wd=0.0))
    nag = mx.optimizer.NAG(learning_rate=RATES[0], momentum=MU)
    weights = [mx.nd.ones(shape) for shape in SHAPES]
    states = [nag.create_state(i, weight) for i, weight in enumerate(weights)]
    for step in range(STEPS):
        backward(parameters, step)
        trainer.step(1)
        for i, weight in enumerate(weights):
            nag.update(i, weight, mx.nd.array(gradients_of(i)[step]), states[i])
    for parameter, weight in zip(parameters, weights):
        assert_equal_to_rounding(parameter.data().asnumpy(), weight.asnumpy())


def test_weight_decay_that_ends_leaves_its_momentum_to_fade():
    parameters, trainer = make(options())
    for step in range(STEPS):
        if step == 10:
            parameters[0].wd_mult = 0.0
        backward(parameters, step)
        trainer.step(1)
    wd = [WD] * 10 + [0.0] * 10
    expected = nesterov_sgd(np.ones(SHAPES[0]), gradients_of(0), [RATES[0]] * STEPS, wd=wd)
    assert_equal_to_rounding(parameters[0].data().asnumpy(), expected)


def test_the_optimizer_applies_no_momentum_of_its_own():
    parameters, trainer = make(options())
    backward(parameters, 0)
    trainer.step(1)
    assert set(trainer._updaters[0].states.values()) == {None}


def test_momentum_that_is_changed_later_is_an_error():
    parameters, trainer = make(options())
    backward(parameters, 0)
    trainer.step(1)
    trainer.optimizer.momentum = 0.5
    backward(parameters, 1)
    with pytest.raises(ValueError, match="momentum is 0.5 now, but compressors apply 0.875"):
        trainer.step(1)


@pytest.mark.parametrize("saved_contexts", [1, 2])
def test_a_checkpoint_continues_on_two_contexts(tmp_path, saved_contexts):
    def steps(parameters, trainer, numbers):
        for step in numbers:
            backward(parameters, step)
            trainer.step(BATCH_SIZE * len(parameters[0].list_ctx()))

    parameters, trainer = make(options(), contexts=saved_contexts)
    steps(parameters, trainer, range(3))
    trainer.save_states(str(tmp_path / "states"))
    saved = [parameter.data().copy() for parameter in parameters]
    steps(parameters, trainer, range(3, 6))
    resumed, trainer = make(options(), contexts=2)
    for parameter, weight in zip(resumed, saved):
        parameter.set_data(weight)
    trainer.load_states(str(tmp_path / "states"))
    steps(resumed, trainer, range(3, 6))
    for ours, expected in zip(resumed, parameters):
        for array in ours.list_data():
            np.testing.assert_array_equal(array.asnumpy(), expected.data().asnumpy())


@pytest.mark.parametrize(
    "calls", [["suspend", "resume"], ["suspend", "suspend", "resume"], ["suspend", "resume"] * 2]
)
def test_suspended_training_goes_on_as_if_it_had_never_stopped(calls):
    results = []
    for suspends in (True, False):
        bps.init()
        parameters, trainer = make(options(), kvstore=None)
        for step in range(6):
            if suspends and step == 3:
                for call in calls:
                    bps.suspend() if call == "suspend" else bps.resume(1, 1)
            backward(parameters, step)
            trainer.step(1)
        results.append([parameter.data().asnumpy() for parameter in parameters])
        bps.shutdown()
    for resumed, expected in zip(*results):
        np.testing.assert_array_equal(resumed, expected)


def test_row_sparse_gradients_follow_nesterov_sgd():
    net = mx.gluon.nn.Embedding(20, 4, sparse_grad=True)
    net.initialize(mx.init.One())
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", options(), compression_params=EXACT, kvstore="local"
    )
    gradients = []
    for step in range(STEPS):
        rows = [step % 20, 3, 3]
        with mx.autograd.record():
            loss = net(mx.nd.array(rows)).sum()
        loss.backward()
        trainer.step(1)
        gradients.append(np.repeat(np.bincount(rows, minlength=20)[:, None], 4, axis=1))
    expected = nesterov_sgd(np.ones((20, 4)), gradients, [RATES[0]] * STEPS)
    assert_equal_to_rounding(net.weight.data().asnumpy(), expected)


def weights_and_gradients(gradient, dtype="float32"):
    """Return a weight of ones with this gradient."""
    weight = mx.nd.ones(3, dtype=dtype)
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * gradient).sum()
    loss.backward()
    return [weight], [weight.grad]


def test_a_weight_whose_gradient_is_stale_is_left_alone():
    momentum = Momentum(0.5, nesterov=lambda index: True)
    param = mx.gluon.Parameter("w", shape=(3,))
    param.initialize()
    param.grad()[:] = 2.0
    momentum.add_weight_decay(mx.optimizer.SGD(wd=1.0), [param], 1.0)
    np.testing.assert_array_equal(param.grad().asnumpy(), np.full(3, 2.0))
    assert momentum.state() == {}


def test_momentum_of_float16_gradients_is_kept_in_float32():
    momentum = Momentum(0.5, nesterov=lambda index: True)
    for value in (1.0, 2.0**-13):  # 0.5 + 2**-13 is 0.5 in float16
        _, gradients = weights_and_gradients(value, "float16")
        momentum.add_to_gradient(0, gradients)
    assert gradients[0].dtype == np.float16
    (m,) = momentum.state().values()
    np.testing.assert_array_equal(m, np.full(3, 0.5 + 2.0**-13, np.float32))

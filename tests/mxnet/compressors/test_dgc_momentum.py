"""The momentum that a compressor applies: its source, and that it is applied only once."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests import dgc_replay, replay
from tests.mxnet.cluster.jobs import backward, gradients

SHAPES = [(40, 50), (7,), (30, 10)]
MU, LR = 0.875, 0.125  # exact in float32
OPTIMIZER = {"learning_rate": LR, "momentum": MU}
DGC = {"compressor": "dgc", "k": 0.01, "seed": 7}
DGC_NESTEROV = {**DGC, "momentum": "nesterov"}
ONEBIT_NESTEROV = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov"}
STEPS = 8


def trained(optimizer, compression, optimizer_params=None, overrides=None):
    """Return the trainer, the gradients after each step, and the final weights."""
    params = []
    for i, shape in enumerate(SHAPES):
        param = mx.gluon.Parameter(f"p{i}", shape=shape)
        param.initialize(mx.init.Constant(1.0))
        params.append(param)
    for i, override in (overrides or {}).items():
        params[i].compression_params = override
    trainer = bps.DistributedTrainer(
        params, optimizer, optimizer_params, compression_params=compression, kvstore="local"
    )
    reduced = []
    for step in range(STEPS):
        backward(params, gradients(step, SHAPES))
        trainer.step(1)
        reduced.append([param.grad().asnumpy() for param in params])
    return trainer, list(zip(*reduced)), [param.data().asnumpy() for param in params]


def sent(index, mu, nesterov):
    """Yield the values of a parameter that dgc sends in each step."""
    n = int(np.prod(SHAPES[index]))
    one = dgc_replay.Replay(
        n,
        np.float32,
        mu=mu,
        start=replay.own_start(DGC["seed"], index, 0),
        nesterov=nesterov,
        **dgc_replay.plan(n, DGC["k"], 0.01),
    )
    for step in range(STEPS):
        yield one.step(gradients(step, SHAPES)[index].ravel())[1].reshape(SHAPES[index])


def with_momentum(index, nesterov):
    """Yield the gradients of a parameter with momentum."""
    m = np.float32(0)
    for step in range(STEPS):
        g = gradients(step, SHAPES)[index]
        m = np.float32(MU) * m + g
        yield g + np.float32(MU) * m if nesterov else m


def assert_are(reduced, weight, expected):
    """Check that the update used exactly these gradients."""
    total = np.ones_like(weight)
    for ours, theirs in zip(reduced, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        total -= np.float32(LR) * ours
    np.testing.assert_allclose(weight, total, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("compression", [DGC, DGC_NESTEROV, ONEBIT_NESTEROV])
@pytest.mark.parametrize("name", ["sgd", "nag"])
def test_an_optimizer_object_trains_as_its_name_and_params_do(name, compression):
    params = {**OPTIMIZER, "wd": 0.0625}
    optimizer = mx.optimizer.create(name, **params)
    trainer, _, ours = trained(optimizer, compression)
    _, _, expected = trained(name, compression, params)
    for a, b in zip(ours, expected):
        np.testing.assert_array_equal(a, b)
    assert trainer.optimizer is optimizer and optimizer.momentum == MU


@pytest.mark.parametrize("compression", [DGC, ONEBIT_NESTEROV])
def test_an_object_that_has_been_used_still_has_its_momentum(compression):
    optimizer = mx.optimizer.SGD(**OPTIMIZER)
    _, _, first = trained(optimizer, compression)
    _, _, second = trained(optimizer, compression)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name, compression, nesterov",
    [("sgd", DGC, False), ("sgd", DGC_NESTEROV, True), ("nag", DGC, True)],
)
@pytest.mark.parametrize("as_object", [False, True])
def test_dgc_has_the_momentum_of_the_optimizers_kind(name, compression, nesterov, as_object):
    if as_object:
        _, reduced, weights = trained(mx.optimizer.create(name, **OPTIMIZER), compression)
    else:
        _, reduced, weights = trained(name, compression, OPTIMIZER)
    for i in (0, 2):
        assert_are(reduced[i], weights[i], sent(i, MU, nesterov))
    assert_are(reduced[1], weights[1], with_momentum(1, nesterov))  # vectors are not compressed


@pytest.mark.parametrize(
    "name, override, nesterov, others",
    [
        ("sgd", DGC, False, False),
        ("sgd", DGC_NESTEROV, True, False),
        ("nag", DGC, True, True),
    ],
)
@pytest.mark.parametrize("compression", [None, {"fp16": False}])
def test_one_parameter_alone_has_dgcs_momentum_and_the_others_the_optimizers(
    name, override, nesterov, others, compression
):
    _, reduced, weights = trained(name, compression, OPTIMIZER, {0: override, 1: override})
    assert_are(reduced[0], weights[0], sent(0, MU, nesterov))
    assert_are(reduced[1], weights[1], with_momentum(1, nesterov))
    assert_are(reduced[2], weights[2], with_momentum(2, others))


def test_one_parameter_alone_may_be_left_without_compression_or_with_another_momentum():
    overrides = {0: DGC, 1: None, 2: None}
    _, reduced, weights = trained("sgd", ONEBIT_NESTEROV, OPTIMIZER, overrides)
    assert_are(reduced[0], weights[0], sent(0, MU, nesterov=False))
    for i in (1, 2):
        assert_are(reduced[i], weights[i], with_momentum(i, nesterov=True))


@pytest.mark.parametrize(
    "compression, own, nesterov",
    [
        (DGC, None, False),  # the trainer's kind, which is the optimizer's
        (DGC_NESTEROV, None, True),
        (DGC, DGC_NESTEROV, True),  # its own kind, even though dgc does not compress vectors
        (DGC_NESTEROV, DGC, False),
        (DGC, {"fp16": False}, False),
        (None, DGC_NESTEROV, True),
    ],
)
def test_a_parameter_with_momentum_after_the_exchange_has_its_own_or_the_trainers_kind(
    compression, own, nesterov
):
    overrides = {1: own, 0: DGC_NESTEROV} if own is not None else {1: None}
    _, reduced, weights = trained("sgd", compression, OPTIMIZER, overrides)
    assert_are(reduced[1], weights[1], with_momentum(1, nesterov))


@pytest.mark.parametrize("compression", [DGC, ONEBIT_NESTEROV])
@pytest.mark.parametrize("name", ["lars", "lbsgd", "signum", "dcasgd"])
def test_an_optimizer_whose_update_is_not_linear_keeps_its_momentum(name, compression):
    optimizer = mx.optimizer.create(name, learning_rate=LR, momentum=MU)
    said = f"momentum of SGD and NAG, but not that of {type(optimizer).__name__}"
    for where in (
        {"compression": compression},
        {"compression": None, "overrides": {0: compression}},
    ):
        with pytest.raises(ValueError, match=said):
            trained(optimizer, **where)


CLIPS = "momentum is applied without clip_gradient, got 1.0: pass max_grad_norm"


@pytest.mark.parametrize("compression", [DGC, ONEBIT_NESTEROV])
@pytest.mark.parametrize("name", ["sgd", "nag"])
def test_an_optimizer_that_would_clip_the_momentum_is_refused(name, compression):
    clipping = {**OPTIMIZER, "clip_gradient": 1.0}
    for where in (
        {"compression": compression},
        {"compression": None, "overrides": {0: compression}},
    ):
        with pytest.raises(ValueError, match=CLIPS):
            trained(name, optimizer_params=clipping, **where)
    trained(name, {"compressor": "onebit"}, clipping)  # the optimizer applies the momentum


def test_a_loaded_optimizer_that_would_clip_the_momentum_is_refused_in_the_next_step(tmp_path):
    file = str(tmp_path / "stock")
    param = mx.gluon.Parameter("p0", shape=SHAPES[0])
    param.initialize(mx.init.Constant(1.0))
    clipping = mx.optimizer.SGD(clip_gradient=1.0, **OPTIMIZER)
    mx.gluon.Trainer([param], clipping).save_states(file)
    trainer = bps.DistributedTrainer(
        [param], "sgd", OPTIMIZER, compression_params=ONEBIT_NESTEROV, kvstore="local"
    )
    trainer.load_states(file)
    backward([param], gradients(0, SHAPES))
    with pytest.raises(ValueError, match=CLIPS):
        trainer.step(1)
    assert (param.data() == 1).min()


class Own(mx.optimizer.SGD):
    """A user's optimizer."""


def test_a_users_own_kind_of_sgd_is_warned_of_once(logged):
    _, reduced, weights = trained(Own(**OPTIMIZER), ONEBIT_NESTEROV)
    _, expected, _ = trained("sgd", ONEBIT_NESTEROV, OPTIMIZER)
    for ours, theirs in zip(reduced, expected):
        np.testing.assert_array_equal(ours, theirs)
    trained(Own(**OPTIMIZER), ONEBIT_NESTEROV)
    trained("ccsgd", ONEBIT_NESTEROV, OPTIMIZER)  # MXNet's own
    said = [line for line in logged.messages if "its update must be linear" in line]
    assert len(said) == 1 and f"{__name__}.Own" in said[0]


def test_weight_decay_has_the_momentum_of_its_parameter():
    params = {"learning_rate": LR, "momentum": MU, "wd": 0.0625}
    everything = {"compressor": "dgc", "k": 10**9, "momentum_masking": False}
    alone = {0: everything, 2: {**everything, "momentum": "nesterov"}}
    _, _, weights = trained("sgd", None, params, alone)
    for i, nesterov in enumerate([False, False, True]):
        x, m = np.ones(SHAPES[i]), 0.0
        for step in range(STEPS):
            g = gradients(step, SHAPES)[i] + 0.0625 * x
            m = MU * m + g
            x = x - LR * (g + MU * m if nesterov else m)
        np.testing.assert_allclose(weights[i], x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", mx.optimizer.SGD(learning_rate=LR)])
def test_without_momentum_dgc_accumulates_only(optimizer):
    params = {"learning_rate": LR} if optimizer == "sgd" else None
    _, reduced, weights = trained(optimizer, DGC, params)
    assert_are(reduced[0], weights[0], sent(0, None, nesterov=False))


@pytest.mark.parametrize(
    "optimizer, name",
    [("adam", "Adam"), (mx.optimizer.Adam(), "Adam"), (mx.optimizer.SGD(), "SGD")],
)
@pytest.mark.parametrize("compression", [DGC_NESTEROV, ONEBIT_NESTEROV])
def test_momentum_is_refused_where_the_optimizer_has_none(optimizer, name, compression):
    said = f"needs an optimizer with momentum > 0, .*; got momentum None of {name}. Leave the key"
    for where in (
        {"compression": compression},
        {"compression": None, "overrides": {0: compression}},
    ):
        with pytest.raises(ValueError, match=said):
            trained(optimizer, **where)

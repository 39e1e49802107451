"""Gradients that backward has not written since the last step, in one process."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib.amp.loss_scaler import LossScaler

import gluon_gc as bps
from gluon_gc.mxnet.engine.operators import MessageAttribute
from gluon_gc.mxnet.kvstore.horovod.message_groups import numbered
from gluon_gc.mxnet.state import tensor_states
from tests.mxnet.cluster.jobs import backward, gradients, make

SHAPES = [(30, 10), (40,), (7, 5)]
ONEBIT = {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"}
DGC = {"compressor": "dgc", "k": 0.05, "seed": 7}
OPTIMIZER = {"learning_rate": 0.125, "momentum": 0.5}
each_compression = pytest.mark.parametrize("compression", [None, ONEBIT, DGC])


def step(params, trainer, number, used, **kwargs):
    """Train a step that uses some of the parameters."""
    values = gradients(number, SHAPES)
    if used:
        backward([params[i] for i in used], [values[i] for i in used])
    trainer.step(1, **kwargs)


def kept(trainer):
    """Return residuals, momentum and random streams by parameter number."""
    numbers = {tensor.name: i for (i, _), tensor in trainer._averaging.tensors.items()}
    state = tensor_states.state(trainer._averaging.exchange, trainer._averaging.names())
    arrays = {(numbers[key.tensor], *key[1:]): array for key, array in state}
    own = trainer._momentum.state() if trainer._momentum else {}
    return {**arrays, **{(key[0], "trainer", key): array for key, array in own.items()}}


def assert_same(a, b, numbers):
    """Check that the states of these parameters are equal."""
    a, b = ({key: v for key, v in state.items() if key[0] in numbers} for state in (a, b))
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=str(key))


@each_compression
def test_what_no_gradient_is_fresh_of_keeps_its_weight_and_all_that_is_carried_over(compression):
    params, trainer = make(SHAPES, OPTIMIZER, compression)
    step(params, trainer, 0, [0, 1, 2])
    weights, before = [param.data().asnumpy() for param in params], kept(trainer)
    for number in range(1, 4):
        step(params, trainer, number, [1], ignore_stale_grad=True)
    assert_same(kept(trainer), before, {0, 2})
    for i in (0, 2):
        np.testing.assert_array_equal(params[i].data().asnumpy(), weights[i])
    assert (params[1].data().asnumpy() != weights[1]).any()


@each_compression
def test_a_parameter_that_is_frozen_for_a_while_keeps_what_is_carried_over(compression):
    params, trainer = make(SHAPES, OPTIMIZER, compression)
    step(params, trainer, 0, [0, 1, 2])
    before = kept(trainer)
    params[0].grad_req = "null"
    step(params, trainer, 1, [1, 2])
    params[0].grad_req = "write"
    assert_same(kept(trainer), before, {0})


def test_parameters_that_come_and_go_train_as_they_would_alone():
    turns = [[0, 1, 2], [0], [1, 2], [], [2], [0, 1], [0, 1, 2]]
    options = {"learning_rate": 0.125, "momentum": 0.5, "wd": 0.25}
    params, trainer = make(SHAPES, options, {**ONEBIT, "ef": "corrected"})
    for number, used in enumerate(turns):
        trainer.set_learning_rate(0.5 / (1 + number))
        step(params, trainer, number, used, ignore_stale_grad=True)
    for i in range(len(SHAPES)):
        (alone,), trainer = make([SHAPES[i]], options, {**ONEBIT, "ef": "corrected"})
        for number, used in enumerate(turns):
            trainer.set_learning_rate(0.5 / (1 + number))
            if i in used:
                backward([alone], [gradients(number, SHAPES)[i]])
                trainer.step(1)
        np.testing.assert_array_equal(params[i].data().asnumpy(), alone.data().asnumpy())


@each_compression
def test_a_context_that_has_not_used_a_parameter_counts_as_zeros_and_is_updated_too(compression):
    both, trainer = make(SHAPES[:1], OPTIMIZER, compression, contexts=2)
    (one,), alone = make(SHAPES[:1], OPTIMIZER, compression)
    for number, used in enumerate([(0, 1), (0,), (), (1,), (0, 1)]):
        (value,) = gradients(number, SHAPES[:1])
        losses = []
        with mx.autograd.record():
            for c in used:
                losses.append((both[0].data(mx.cpu(c)) * mx.nd.array(value, ctx=mx.cpu(c))).sum())
        if used:
            mx.autograd.backward(losses)
            backward([one], [value * np.float32(len(used))])
        trainer.step(2, ignore_stale_grad=True)
        alone.step(2, ignore_stale_grad=True)
        for data in both[0].list_data():
            np.testing.assert_array_equal(data.asnumpy(), one.data().asnumpy())


def test_a_row_sparse_gradient_that_is_stale_counts_as_no_rows():
    net = mx.gluon.nn.Embedding(6, 2, sparse_grad=True)
    net.initialize(mx.init.One(), ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore="local"
    )
    for contexts in ((0, 1), (1,)):
        with mx.autograd.record():
            losses = [net(mx.nd.array([c], ctx=mx.cpu(c))).sum() for c in contexts]
        mx.autograd.backward(losses)
        trainer.step(1, ignore_stale_grad=True)
    for data in net.weight.list_data():
        np.testing.assert_array_equal(data.asnumpy()[:3], [[0, 0], [-1, -1], [1, 1]])


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_stale_gradient_is_reported_before_anything_is_sent(contexts, monkeypatch):
    params, trainer = make(SHAPES, OPTIMIZER, ONEBIT, contexts=contexts)
    for method in ("start", "declare"):
        monkeypatch.setattr(
            trainer._averaging.exchange, method, lambda *_, **__: pytest.fail("sent")
        )
    backward(params[:1], gradients(0, SHAPES))
    with pytest.raises(UserWarning, match="`p1` on context cpu.0. has not been updated by back"):
        trainer.step(1)


def test_an_update_does_not_ignore_what_has_been_averaged():
    params, trainer = make(SHAPES, OPTIMIZER, ONEBIT)
    backward(params[:1], gradients(0, SHAPES))
    trainer.allreduce_grads()
    with pytest.raises(ValueError, match="the gradient of p1 was stale when it was averaged"):
        trainer.update(1, ignore_stale_grad=True)
    trainer.allreduce_grads(ignore_stale_grad=True)
    trainer.update(1, ignore_stale_grad=True)
    np.testing.assert_array_equal(params[1].data().asnumpy(), 1)


def test_averages_that_the_script_has_applied_are_not_exchanged_again():
    params, trainer = make(SHAPES, {"learning_rate": 1.0})
    backward(params, gradients(0, SHAPES))
    trainer.allreduce_grads(1)
    for param in params:
        param.set_data(param.data() - param.grad())
    trainer.applied()
    step(params, trainer, 1, [1], ignore_stale_grad=True)
    for i, param in enumerate(params):
        expected = 1 - gradients(0, SHAPES)[i] - gradients(1, SHAPES)[i] * (i == 1)
        np.testing.assert_allclose(param.data().asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_averages_are_no_fresh_gradients_of_a_step():
    params, trainer = make(SHAPES, OPTIMIZER)
    backward(params, gradients(0, SHAPES))
    trainer.allreduce_grads(4)
    with pytest.raises(UserWarning, match="since last `step` or `allreduce_grads`"):
        trainer.step(4)


def test_a_step_that_nobody_has_a_fresh_gradient_for_sends_nothing(monkeypatch):
    params, trainer = make(SHAPES, OPTIMIZER, ONEBIT, max_grad_norm=1.0, on_nonfinite="skip")
    step(params, trainer, 0, [0, 1, 2])
    monkeypatch.setattr(trainer._averaging.exchange, "start", lambda *_, **__: pytest.fail("sent"))
    before = params[0].data().asnumpy()
    step(params, trainer, 1, [], ignore_stale_grad=True)
    np.testing.assert_array_equal(params[0].data().asnumpy(), before)


def test_the_norm_is_that_of_fresh_gradients():
    params, trainer = make(SHAPES, {"learning_rate": 1.0}, max_grad_norm=1.0)
    step(params, trainer, 0, [0, 1, 2])
    before = params[1].data().asnumpy()
    step(params, trainer, 1, [1], ignore_stale_grad=True)
    moved = np.linalg.norm(params[1].data().asnumpy() - before)
    assert moved == pytest.approx(1.0, rel=1e-5)


def test_a_gradient_of_a_step_that_was_skipped_is_not_used_again():
    params, trainer = make(SHAPES, {"learning_rate": 1.0}, on_nonfinite="skip")
    bad = gradients(0, SHAPES)
    bad[0][0] = np.nan
    backward(params, bad)
    trainer.step(1)
    step(params, trainer, 1, [1], ignore_stale_grad=True)
    np.testing.assert_array_equal(params[0].data().asnumpy(), 1)
    np.testing.assert_array_equal(params[2].data().asnumpy(), 1)
    expected = 1 - gradients(1, SHAPES)[1]
    np.testing.assert_allclose(params[1].data().asnumpy(), expected, rtol=1e-5, atol=1e-6)


@each_compression
def test_an_overflow_under_amp_is_one_of_fresh_gradients(compression):
    params, trainer = make(SHAPES, OPTIMIZER, compression)
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    step(params, trainer, 0, [0, 1, 2], ignore_stale_grad=True)
    weights = [param.data().asnumpy() for param in params]
    backward(params[:1], [np.full(SHAPES[0], np.inf, np.float32)])
    trainer.step(1, ignore_stale_grad=True)
    step(params, trainer, 1, [1], ignore_stale_grad=True)
    for i in (0, 2):
        np.testing.assert_array_equal(params[i].data().asnumpy(), weights[i])
    assert (params[1].data().asnumpy() != weights[1]).any()


def test_averages_before_the_first_update_are_warned_of_once(logged):
    params, trainer = make(SHAPES, OPTIMIZER, ONEBIT)
    for _ in range(3):  # before the first update, the script may apply averages itself
        backward(params, gradients(0, SHAPES))
        trainer.allreduce_grads()
    trainer.update(1)
    for _ in range(4):
        backward(params, gradients(0, SHAPES))
        trainer.allreduce_grads()
    said = [line for line in logged.messages if "allreduce_grads() was called twice" in line]
    assert len(said) == 1 and "residual or momentum of p2 returns to its state" in said[0]


@pytest.mark.parametrize("compression", [None, {"compressor": "onebit"}])
def test_averages_that_leave_nothing_behind_are_not_warned_of(compression, logged):
    params, trainer = make(SHAPES, OPTIMIZER, compression)
    for _ in range(2):
        backward(params, gradients(0, SHAPES))
        trainer.allreduce_grads()
    assert "called twice" not in logged.text


def test_a_scheduler_is_not_asked_ahead_for_parameters_that_are_behind():
    schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.5, base_lr=1.0)
    params, trainer = make(SHAPES, {"learning_rate": 1.0, "lr_scheduler": schedule})
    for number, used in enumerate([[0], [0], [0], [1], [1], [1], [0]]):
        before = params[used[0]].data().asnumpy()
        step(params, trainer, number, used, ignore_stale_grad=True)
        moved = before - params[used[0]].data().asnumpy()
        rate = 0.5 if number == 6 else 1.0
        expected = rate * gradients(number, SHAPES)[used[0]]
        np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)


def test_what_is_kept_for_sets_of_parameters_has_bounds():
    attribute = MessageAttribute(shared=1)
    groups = numbered(lambda channels, number: [number])
    for number in range(1000):
        attribute("fuse", {"how": number})
        groups((number,))
    assert len(attribute._cache) <= 64 and groups.cache_info().currsize == 16
    assert groups((999,)) == [999]  # made once
    assert groups((0,)) == [1000]  # forgotten, and made again
    groups.cache_clear()
    assert groups((999,)) == [1001]  # a name is never used again

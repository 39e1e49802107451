"""MXNet copies and pickles optimizers; DistributedOptimizer supports both."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps


@pytest.fixture
def cluster_of_one():
    bps.init()
    yield
    bps.shutdown()


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("again", [pickled, copy.deepcopy, copy.copy])
def test_a_copy_is_a_distributed_optimizer_that_updates_alike(again, cluster_of_one):
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.75))
    optimizer.set_learning_rate(0.25)
    other = again(optimizer)
    assert type(other) is bps.DistributedOptimizer
    assert (other.learning_rate, other.momentum) == (0.25, 0.75)
    weights = [mx.nd.ones(3), mx.nd.ones(3)]
    for one, weight in zip((optimizer, other), weights):
        state = one.create_state(0, weight)
        for gradient in (1.0, 3.0):
            one.update(0, weight, mx.nd.ones(3) * gradient, state)
    np.testing.assert_array_equal(weights[1].asnumpy(), weights[0].asnumpy())
    np.testing.assert_array_equal(weights[0].asnumpy(), 1 - 0.25 * (1 + 3.75))


def test_attributes_are_those_of_the_wrapped_optimizer(cluster_of_one):
    inner = mx.optimizer.SGD(learning_rate=0.5)
    optimizer = bps.DistributedOptimizer(inner)
    optimizer.rescale_grad, optimizer.lr = 0.125, 0.25
    weight = mx.nd.zeros(3)
    optimizer.update(0, weight, mx.nd.ones(3), None)
    np.testing.assert_array_equal(weight.asnumpy(), -0.03125)
    optimizer.idx2name = {0: "fc_weight"}
    optimizer.set_lr_mult({"fc_weight": 0.5})
    optimizer.update(0, weight, mx.nd.ones(3), None)
    np.testing.assert_array_equal(weight.asnumpy(), -0.046875)


def test_two_optimizers_have_gradients_of_their_own(cluster_of_one):
    for size in (3, 5):
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5))
        weight = mx.nd.zeros(size)
        optimizer.update(0, weight, mx.nd.ones(size), None)
        np.testing.assert_array_equal(weight.asnumpy(), -0.5)


def test_an_updaters_states_carry_it():
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5))
    saved = mx.optimizer.get_updater(optimizer).get_states(dump_optimizer=True)
    updater = mx.optimizer.get_updater(mx.optimizer.Adam())
    updater.set_states(saved)
    assert type(updater.optimizer) is bps.DistributedOptimizer
    assert updater.optimizer.learning_rate == 0.5


def test_a_module_needs_someone_who_adds_the_gradients_of_its_contexts(cluster_of_one, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    random = np.random.RandomState(0)
    data, label = mx.nd.array(random.randn(8, 6)), mx.nd.array(np.arange(8) % 2)
    batches = mx.io.NDArrayIter(data, label, 4, label_name="softmax_label")
    output = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    symbol = mx.sym.SoftmaxOutput(output, name="softmax")

    def fit(contexts, kvstore, wraps=True):
        module = mx.mod.Module(symbol, context=[mx.cpu(i) for i in range(contexts)])
        optimizer = mx.optimizer.SGD(rescale_grad=0.25, learning_rate=0.5)
        batches.reset()
        module.fit(
            batches,
            num_epoch=1,
            kvstore=kvstore,
            initializer=mx.init.One(),
            optimizer=bps.DistributedOptimizer(optimizer) if wraps else optimizer,
        )
        return module.get_params()[0]["fc_weight"].asnumpy()

    expected = fit(1, None, wraps=False)
    np.testing.assert_array_equal(fit(1, None), expected)
    np.testing.assert_allclose(fit(2, "local"), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="contexts of a Module have different gradients of fc_"):
        fit(2, None)

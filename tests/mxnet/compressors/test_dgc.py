"""Deep Gradient Compression in a trainer of one process."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward, gradients, make, train

SHAPES = [(40, 50), (7,), (3, 100)]
OPTIMIZER = {"learning_rate": 0.125, "momentum": 0.875, "wd": 0.0625}
ALL = {"compressor": "dgc", "k": 10**9, "momentum_masking": False}
STEPS = 20


def sparse(**more):
    return {"compressor": "dgc", "k": 0.01, "seed": 7, **more}


def moved(trainer, name="p0"):
    """Return the share of a parameter's bytes that a step sends."""
    stats = trainer.compression_stats()["tensors"][name]
    return stats["pushed_bytes"] / stats["raw_bytes"]


def test_if_everything_is_sent_it_is_sgd_with_momentum_and_weight_decay():
    params, trainer = make(SHAPES, OPTIMIZER, ALL)
    ours = train(params, trainer, SHAPES, STEPS, batch_size=1)
    sgd = mx.optimizer.SGD(**OPTIMIZER)
    weights = [mx.nd.ones(shape) for shape in SHAPES]
    states = [sgd.create_state(i, weight) for i, weight in enumerate(weights)]
    for step in range(STEPS):
        for i, gradient in enumerate(gradients(step, SHAPES)):
            sgd.update(i, weights[i], mx.nd.array(gradient), states[i])
    for a, b in zip(ours, weights):
        np.testing.assert_allclose(a, b.asnumpy(), rtol=0, atol=1e-5)


def test_vectors_are_not_compressed():
    params, trainer = make(SHAPES, OPTIMIZER, sparse())
    train(params, trainer, SHAPES, 1)
    assert moved(trainer, "p1") == 1
    assert moved(trainer, "p0") < 0.03


def test_the_warm_up_follows_the_epoch_that_the_trainer_is_told():
    params, trainer = make(SHAPES, OPTIMIZER, sparse(warmup_epochs=1, warmup_coeff=[0.2]))
    trainer.set_epoch(0)
    train(params, trainer, SHAPES, 1)
    assert 0.2 < moved(trainer) < 0.3  # each value has an index
    trainer.set_epoch(1)
    train(params, trainer, SHAPES, 9)
    assert moved(trainer) < 0.1


def test_an_epoch_may_be_told_before_the_first_step_and_never():
    shares = []
    for epoch in (None, 0):
        params, trainer = make(SHAPES, OPTIMIZER, sparse(warmup_epochs=1, warmup_coeff=[0.2]))
        if epoch is not None:
            trainer.set_epoch(epoch)
        train(params, trainer, SHAPES, 1)
        shares.append(moved(trainer))
    assert shares[0] < 0.03 < 0.2 < shares[1]


@pytest.mark.parametrize("epoch, error", [(-1, ValueError), (0.5, TypeError), (True, TypeError)])
def test_an_epoch_is_a_whole_number(epoch, error):
    _, trainer = make(SHAPES, OPTIMIZER, sparse())
    with pytest.raises(error, match="epoch must be"):
        trainer.set_epoch(epoch)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_raised_even_if_it_would_not_be_sent(bad):
    params, trainer = make([(40, 50)], OPTIMIZER, sparse())
    values = gradients(0, [(40, 50)])
    values[0][3, 3] = bad
    backward(params, values)
    trainer.step(1)
    with pytest.raises(
        mx.MXNetError, match="the gradient of p0 has a NaN or an infinity in step 1"
    ):
        params[0].data().asnumpy()


def test_one_parameter_alone_may_be_compressed_with_it():
    params = [mx.gluon.Parameter(f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
    for param in params:
        param.initialize()
    params[0].compression_params = sparse()
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.1}, kvstore="local")
    train(params, trainer, SHAPES, 1)
    assert moved(trainer, "p0") < 0.03
    assert moved(trainer, "p2") == 1

"""Nesterov SGD on a cluster with an exact compressor: weight decay and learning-rate changes."""

import numpy as np

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import run
from tests.mxnet.compressors.test_momentum import (
    BATCH_SIZE,
    EXACT,
    MIN_COMPRESS_BYTES,
    MU,
    RATES,
    SHAPES,
    STEPS,
    WD,
    WD_MULTS,
    assert_equal_to_rounding,
    nesterov_sgd,
)


def weight_decay():
    """Train with weight decay on known gradients; returns the final weights."""
    params = parameters(SHAPES)
    for param, wd_mult in zip(params, WD_MULTS):
        param.wd_mult = wd_mult
    params[2].compression_params = None
    optimizer = {"learning_rate": RATES[0], "momentum": MU, "wd": WD}
    trainer = bps.DistributedTrainer(params, "sgd", optimizer, compression_params=EXACT)
    for step, rate in enumerate(RATES):
        trainer.set_learning_rate(rate)
        backward(params, gradients_of(bps.rank(), step, SHAPES))
        trainer.step(BATCH_SIZE)
    return [param.data().asnumpy() for param in params]


def test_every_tensor_follows_nesterov_sgd_on_two_workers_and_two_servers():
    variables = {"BYTEPS_MIN_COMPRESS_BYTES": MIN_COMPRESS_BYTES, "BYTEPS_PARTITION_BYTES": 400}
    first, second = run(weight_decay, servers=2, variables=variables)
    for i, shape in enumerate(SHAPES):
        gradients = [
            sum(gradients_of(rank, step, SHAPES)[i] for rank in range(2)) / (2 * BATCH_SIZE)
            for step in range(STEPS)
        ]
        expected = nesterov_sgd(np.full(shape, i + 1.0), gradients, wd=WD * WD_MULTS[i])
        np.testing.assert_array_equal(first[i], second[i])
        assert_equal_to_rounding(first[i], expected)

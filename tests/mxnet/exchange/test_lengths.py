"""Payloads whose length varies from step to step, through MXNet's server as rows."""

import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import run, run_local
from tests.mxnet.exchange.test_two_way import (
    arguments,
    assert_equal,
    assert_identical,
    check_replay,
    steps,
)

# Non-zero shares of a gradient: its payload takes 1 row, many, fewer, ...
SHARES = [0, 1, 1, 0.01, 0, 0.3, 0.6, 1]
SIZE = 20_000
BYTEGRAD, DITHERING = {"compressor": "bytegrad"}, {"compressor": "dithering", "k": 2, "seed": 7}
each_kind = pytest.mark.parametrize("params", [BYTEGRAD, DITHERING], ids=["bytegrad", "dithering"])
each_exchange = pytest.mark.parametrize("exchange", ["two_way", "gather"])


def shares_of_a_gradient(**compression_params):
    """Exchange a gradient once for each of SHARES; returns it after each step."""
    (param,) = params = parameters([(SIZE,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": 0.1}, compression_params=compression_params
    )
    (dense,) = gradients_of(bps.rank(), 0, [(SIZE,)])
    result = {}
    for step, share in enumerate(SHARES):
        backward(params, [np.where(np.arange(SIZE) < share * SIZE, dense, np.float32(0))])
        trainer.allreduce_grads()
        trainer.applied()
        result[step] = param.grad().asnumpy()
    return result


@each_exchange
@each_kind
def test_one_worker_gets_what_local_gets(params, exchange):
    job = shares_of_a_gradient, {**params, "exchange": exchange}
    assert_equal(run(*job, 1, 1)[0], run_local(*job))


@each_exchange
@each_kind
def test_two_workers_get_the_mean_to_the_width_of_a_level(params, exchange):
    results = run(shares_of_a_gradient, {**params, "exchange": exchange})
    assert_identical(results)
    dense = [gradients_of(rank, 0, [(SIZE,)])[0] for rank in range(2)]
    largest = max(np.abs(gradient).max() for gradient in dense)
    levels = 255 / 2 if params is BYTEGRAD else 2
    for step, share in enumerate(SHARES):
        sent = np.arange(SIZE) < share * SIZE
        error = results[0][step] - sent * (dense[0] + dense[1]) / 2
        assert np.abs(error).max() <= 2.01 * largest / levels


@pytest.mark.parametrize("kind", ["bytegrad", "dithering", "natural dithering l2"])
def test_messages_of_several_rows_agree_with_a_numpy_replay(kind):
    options = arguments(kind, "corrected", shapes=[(40_000,)], steps=3)
    check_replay(run(steps, options), options)

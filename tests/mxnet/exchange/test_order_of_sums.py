"""Sums in the order of ranks have the same bits in every run."""

import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import backward, gradients_of, parameters
from tests.mxnet.cluster.standing import on_workers

SIZE, WORKERS = 100, 4
WHOLE = {"compressor": "topk", "k": SIZE}
KINDS = {
    "two_way": (WHOLE, "float32"),
    "gathered": ({**WHOLE, "exchange": "gather"}, "float32"),
    "float64": (None, "float64"),
}


def check_sums(compression, dtype):
    """Compare the bits of a sum, where nothing is lost but by rounding."""
    params = parameters([(SIZE,)], dtype=dtype, value=0)
    trainer = bps.DistributedTrainer(
        params, "sgd", {"learning_rate": WORKERS}, compression_params=compression
    )
    gradients = [gradients_of(rank, 0, [(SIZE,)], dtype)[0] for rank in range(WORKERS)]
    backward(params, [gradients[bps.rank()]])
    trainer.step(1)
    np.testing.assert_array_equal(-params[0].data().asnumpy(), np.cumsum(gradients, 0)[-1])


@pytest.mark.parametrize("kind", KINDS)
@on_workers(WORKERS, "servers")
def test_a_server_sums_payloads_and_float64_in_the_order_of_ranks(kind):
    check_sums(*KINDS[kind])


@pytest.mark.parametrize("kind", ["two_way", "gathered"])
@on_workers(WORKERS, "horovod")
def test_workers_of_horovod_sum_payloads_in_the_order_of_ranks(kind):
    check_sums(*KINDS[kind])


@on_workers(WORKERS, "machine")
def test_one_machine_sums_values_in_the_order_of_ranks():
    check_sums(None, "float32")

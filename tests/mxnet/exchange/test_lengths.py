"""Payloads whose length varies from step to step, through MXNet's server as rows."""

import numpy as np

from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_local
from tests.mxnet.exchange.test_two_way import assert_identical, of_way

SHARES = [
    0,
    1,
    1,
    0.01,
    0,
    0.3,
    0.6,
    1,
]  # non-zero shares of a gradient: its payload takes 1 row, many, fewer, ...
COMPRESSORS = [{"compressor": "bytegrad"}, {"compressor": "dithering", "k": 2, "seed": 7}]
WAYS = [
    {"shares": SHARES, "compression_params": {**params, "exchange": exchange}}
    for params in COMPRESSORS
    for exchange in ("two_way", "gather")
]


def test_one_worker_gets_what_local_gets():
    (result,) = run("several_shares", WAYS, 1, 1)
    local = run_local("several_shares", WAYS)
    for name in local:
        np.testing.assert_array_equal(result[name], local[name], err_msg=name)


def test_two_workers_get_the_mean_to_the_width_of_a_level():
    results = run("several_shares", WAYS, 2, 1)
    assert_identical(results)
    dense = [gradients_of(rank, 0, [(20_000,)])[0] for rank in range(2)]
    largest = max(np.abs(gradient).max() for gradient in dense)
    for number, way in enumerate(WAYS):
        levels = 255 / 2 if way["compression_params"]["compressor"] == "bytegrad" else 2
        for step, share in enumerate(SHARES):
            sent = np.arange(20_000) < share * 20_000
            error = of_way(results[0], number)[f"g{step}"] - sent * (dense[0] + dense[1]) / 2
            assert np.abs(error).max() <= 2.01 * largest / levels

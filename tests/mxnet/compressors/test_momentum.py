"""Nesterov SGD on a cluster with an exact compressor: weight decay and learning-rate changes."""

import numpy as np

from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run
from tests.mxnet.compressors.test_momentum_alone import (
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

WORKERS = 2


def test_every_tensor_follows_nesterov_sgd_on_two_workers_and_two_servers():
    results = run(
        "weight_decay",
        {
            "shapes": SHAPES,
            "wd_mults": WD_MULTS,
            "excluded": [2],
            "learning_rates": RATES,
            "compression_params": EXACT,
            "optimizer_params": {"learning_rate": RATES[0], "momentum": MU, "wd": WD},
            "batch_size": BATCH_SIZE,
        },
        WORKERS,
        servers=2,
        variables={"BYTEPS_MIN_COMPRESS_BYTES": MIN_COMPRESS_BYTES, "BYTEPS_PARTITION_BYTES": 400},
    )
    for i, shape in enumerate(SHAPES):
        gradients = [
            sum(gradients_of(rank, step, SHAPES)[i] for rank in range(WORKERS))
            / (WORKERS * BATCH_SIZE)
            for step in range(STEPS)
        ]
        expected = nesterov_sgd(np.full(shape, i + 1.0), gradients, wd=WD * WD_MULTS[i])
        for result in results:
            np.testing.assert_array_equal(result[f"w{i}"], results[0][f"w{i}"])
            assert_equal_to_rounding(result[f"w{i}"], expected)

"""Gradients that travel without a compressor."""

import numpy as np
import pytest

from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_horovod, run_machine
from tests.mxnet.exchange.test_one_exchange import on_machines, on_nodes
from tests.mxnet.exchange.test_two_way import arguments, assert_identical, steps

ONEBIT = {"compressor": "onebit", "ef": "vanilla", "scaling": True}


def on_servers(job, options):
    return run(job, options, 2, 2, {"BYTEPS_PARTITION_BYTES": 1024})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("params", [{}, {"fp16": True}], ids=["uncompressed", "fp16"])
@pytest.mark.parametrize("start", [on_servers, run_horovod, run_machine, on_machines, on_nodes])
def test_the_average_is_that_of_all_workers(start, params, dtype):
    options = {**arguments(steps=3, dtype=dtype), "compression_params": params}
    results = start(steps, options)
    assert_identical(results)
    workers, tolerance = len(results), 2e-3 if dtype == "float16" or params else 1e-6
    for i, shape in enumerate(options["shapes"]):
        for step in (0, 2):
            gradients = [gradients_of(rank, step, options["shapes"])[i] for rank in range(workers)]
            average = np.sum(gradients, 0) / (options["batch_size"] * workers)
            result = results[0][f"g{i}_{step}"].reshape(shape)
            np.testing.assert_allclose(result, average, rtol=tolerance, atol=tolerance)


def test_small_and_excluded_tensors_travel_uncompressed_under_the_same_momentum():
    options = {
        "shapes": [(100,), (10,), (100,)],
        "steps": 4,
        "compression_params": {**ONEBIT, "momentum": "nesterov"},
        "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
        "overrides": {2: None},
    }
    results = run(steps, options, variables={"BYTEPS_MIN_COMPRESS_BYTES": 100})
    for i in (1, 2):
        m = 0
        for step in range(4):
            g = sum(gradients_of(rank, step, options["shapes"])[i] for rank in range(2)) / 2
            m = np.float32(0.9) * m + g
            for result in results:
                np.testing.assert_allclose(
                    result[f"g{i}_{step}"], g + np.float32(0.9) * m, rtol=1e-5, atol=1e-6
                )

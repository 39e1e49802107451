"""The workers of a machine combine their messages, so there is one exchange per machine."""

import numpy as np
import pytest

from tests.compressors import ONE_OF_EACH
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_machine
from tests.mxnet.exchange.test_two_way import (
    arguments,
    assert_identical,
    check_replay,
    corrected,
    every_way,
    of_way,
)

LOCAL_SIZE = 2
MACHINES = {"BYTEPS_LOCAL_SIZE": LOCAL_SIZE}


def _check(ways, servers=1, chunk_elements=10**9, local_size=LOCAL_SIZE, **variables):
    variables = {"BYTEPS_LOCAL_SIZE": local_size, **variables}
    results = run("several_steps", ways, 2 * local_size, servers, variables)
    assert_identical(results)
    for way, options in enumerate(ways):
        of_this = [of_way(result, way) for result in results]
        check_replay(of_this, options, chunk_elements, local_size)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_machines_sum_is_compressed_as_one_workers_gradient_is(name):
    _check(every_way(name))


def test_chunks_of_four_owners_and_two_servers_agree_with_a_numpy_replay():
    chunks = {"chunk_elements": 300, "BYTEPS_PARTITION_BYTES": 1200}
    _check(corrected(steps=5), servers=2, local_size=4, **chunks)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_workers_of_one_machine_agree_with_a_numpy_replay_of_one(name):
    ways = every_way(name)
    results = run_machine("several_steps", ways, LOCAL_SIZE)
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options, local_size=LOCAL_SIZE)


def uncompressed():
    """Return arguments of `jobs.several_steps` without a compressor: each dtype, also as fp16."""
    return [
        {**arguments(steps=3), "compression_params": params, "dtype": dtype}
        for params in ({}, {"fp16": True})
        for dtype in ("float16", "float32", "float64")
    ]


def check_averages(results, ways):
    """Check that the first step's result is the average over all workers, the same on all."""
    assert_identical(results)
    workers = len(results)
    for way, options in enumerate(ways):
        half = options["dtype"] == "float16" or options["compression_params"]
        for i, shape in enumerate(options["shapes"]):
            gradients = [gradients_of(rank, 0, options["shapes"])[i] for rank in range(workers)]
            average = np.sum(gradients, 0) / (options["batch_size"] * workers)
            result = of_way(results[0], way)[f"g{i}_0"].reshape(shape)
            tolerance = 2e-3 if half else 1e-6
            np.testing.assert_allclose(result, average, rtol=tolerance, atol=tolerance)


def test_what_is_not_compressed_is_summed_on_the_machine_too():
    ways = uncompressed()
    check_averages(run("several_steps", ways, 4, 1, MACHINES), ways)
    check_averages(run_machine("several_steps", ways, LOCAL_SIZE), ways)

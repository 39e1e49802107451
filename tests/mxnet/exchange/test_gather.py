"""The exchange in which every worker gets all payloads."""

import numpy as np
import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_local
from tests.mxnet.exchange.test_two_way import assert_identical, check_replay, corrected, of_way


def every_compressor():
    """Return the arguments of `jobs.several_steps` for each compressor with exchange "gather"."""
    ways = corrected(steps=10)
    for way in ways:
        way["compression_params"]["exchange"] = "gather"
    return ways


def check(results, ways, chunk_elements):
    assert_identical(results)
    for number, options in enumerate(ways):
        check_replay([of_way(result, number) for result in results], options, chunk_elements)


@pytest.mark.parametrize("workers, servers", [(2, 2), (3, 1)])
def test_every_compressor_agrees_with_a_numpy_replay(workers, servers):
    ways, variables = every_compressor(), {"BYTEPS_PARTITION_BYTES": 1200}
    check(run("several_steps", ways, workers, servers, variables), ways, 300)


def test_every_compressor_agrees_with_a_numpy_replay_over_horovod():
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    ways, variables = every_compressor(), {"BYTEPS_PARTITION_BYTES": 1200}
    check(run_horovod("several_steps", ways, 3, variables), ways, 300)


def test_one_worker_with_one_server_gets_bit_for_bit_what_local_gets():
    (result,) = run("several_steps", every_compressor(), 1, 1)
    local = run_local("several_steps", every_compressor())
    for key in local:
        np.testing.assert_array_equal(result[key], local[key], err_msg=key)

"""Compressed gradients over Horovod, started by horovodrun."""

import numpy as np
import pytest

from tests.compressors import COMPRESSORS
from tests.distributed.cluster import run, run_horovod
from tests.distributed.test_two_way import (
    arguments,
    assert_identical,
    check_replay,
    every_way,
    of_way,
)

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_feedback_momentum_and_dtype_agrees_with_a_numpy_replay(tmp_path, name):
    ways = every_way(name)
    results = run_horovod(tmp_path, "several_steps", ways)
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_two_workers_get_bit_for_bit_what_the_parameter_server_gives_them(tmp_path, name):
    for folder in ("horovod", "server"):
        (tmp_path / folder).mkdir()
    options, variables = arguments(name, "corrected"), {"BYTEPS_PARTITION_BYTES": 1000}
    ours = run_horovod(tmp_path / "horovod", "steps", options, 2, variables)
    theirs = run(tmp_path / "server", "steps", options, 2, 2, variables)
    for result, other in zip(ours, theirs):
        for key in result:
            if key != "row":
                np.testing.assert_array_equal(result[key], other[key], err_msg=key)


def test_four_workers_agree_with_a_numpy_replay(tmp_path):
    options = arguments("dithering")
    results = run_horovod(tmp_path, "steps", options, 4, {"BYTEPS_PARTITION_BYTES": 400})
    check_replay(results, options, chunk_elements=100)
    assert_identical(results)

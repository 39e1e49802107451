"""Trainers that are made one after the other take no more memory than a few."""

import numpy as np
import pytest

from tests.mxnet.cluster.standing import run, run_horovod, run_machine

ONEBIT = {"compressor": "onebit", "ef": "vanilla"}
WAYS = [
    {"compression_params": ONEBIT},
    {"compression_params": {**ONEBIT, "exchange": "gather", "compressor": "dithering", "k": 4}},
    {},
    {"stype": "row_sparse"},
    {"compression_params": ONEBIT, "algorithm": {"name": "local_steps", "every": 2}},
]


@pytest.mark.parametrize("start", [run, run_horovod, run_machine])
def test_tensors_of_dropped_trainers_are_withdrawn_and_their_keys_are_used_again(start):
    ways = WAYS if start is run else WAYS[:3]
    results = start("dropped", ways)
    turns = 6
    for result in results:
        for number in range(len(ways)):
            for turn in range(turns):
                first, now = (result[f"{number}/{t}/w"] for t in (0, turn))
                np.testing.assert_array_equal(first, now, err_msg=f"{number}/{turn}")
        tensors = result["tensors"].reshape(len(ways), turns)
        # Worker 0 keeps the trainer of turn 1 until turn 4. Each trainer has at most two tensors,
        # and there is one for the check.
        assert (tensors[:, 2:5] == tensors[:, 2:3]).all() and (tensors[:, 2] > tensors[:, 5]).all()
        assert tensors[:, 5].max() <= 3
        keys = result["keys"].reshape(len(ways), turns)
        assert (keys[:, 3:] == keys[:, 3:4]).all()


def test_a_broadcast_through_servers_needs_little_memory_besides_the_arrays():
    sizes = [1, 700_001, 0, 3, 300_000, 1]  # 4 MB
    variables = {"BYTEPS_PARTITION_BYTES": 65536}
    for result in run("peak", {"sizes": sizes}, 2, 2, variables):
        assert result["equal"]
        assert result["peak"] < 1_000_000

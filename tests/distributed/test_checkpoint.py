"""Checkpoints of a cluster: what workers and servers carry over is in them."""

import numpy as np
import pytest

from gluon_gc import checkpoint
from tests.compressors import COMPRESSORS
from tests.distributed import standing
from tests.distributed.standing import run, run_horovod

SHAPES = [(300, 70), (33,), (1,)]  # the first residual takes several messages


COMPRESSIONS = [
    *({**params, "ef": "corrected", "momentum": "nesterov"} for params in COMPRESSORS.values()),
    {"compressor": "dgc", "k": 0.01, "seed": 7, "momentum": "nesterov"},
]


def trained(tmp_path, start, begin):
    """What new workers end with, trained from step `begin` to 6 with each of COMPRESSIONS."""
    standing.end()
    arguments = [
        {
            "folder": str(tmp_path),
            "name": str(number),
            "shapes": SHAPES,
            "compression_params": params,
            **{"begin": begin, "middle": 3, "end": 6},
        }
        for number, params in enumerate(COMPRESSIONS)
    ]
    return start("several_checkpoints", arguments)


def on_servers(job, arguments):
    return run(job, arguments, 2, 2, {"BYTEPS_PARTITION_BYTES": 64_000})


def assert_saved_again_before_any_step(tmp_path):
    """What was loaded, the servers' part too, is in the file that was saved at once."""
    for number in range(len(COMPRESSIONS)):
        for rank in range(2):
            file = tmp_path / f"{number}-{rank}"
            loaded = checkpoint.read(str(file))
            again = checkpoint.read(f"{file}.again")
            assert again.header == loaded.header
            assert again.arrays.keys() == loaded.arrays.keys()
            for name, array in loaded.arrays.items():
                np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


@pytest.mark.parametrize("start", [on_servers, run_horovod])
def test_training_on_from_a_checkpoint_is_training_that_never_stopped(tmp_path, start):
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    for whole, resumed in zip(trained(tmp_path, start, 0), trained(tmp_path, start, 3)):
        for key in whole:
            np.testing.assert_array_equal(resumed[key], whole[key], err_msg=key)
    assert_saved_again_before_any_step(tmp_path)


def test_another_workers_file_is_refused(tmp_path):
    for rank, said in enumerate(run("wrong_states", {"folder": str(tmp_path)})):
        other = 1 - rank
        assert str(said[f"of{rank}"]) == ""
        file = tmp_path / str(other)
        rule = f"the rank is {other} there, but {rank} here"
        assert str(said[f"of{other}"]) == f"'{file}' does not fit: {rule}"

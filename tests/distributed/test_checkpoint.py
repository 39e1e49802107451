"""Checkpoints of a cluster: what workers and servers carry over is in them."""

import numpy as np
import pytest

from tests.compressors import COMPRESSORS
from tests.distributed.cluster import run

SHAPES = [(300, 70), (33,), (1,)]  # the first residual takes several messages


WITH_STATE = {name: {**params, "ef": "corrected"} for name, params in COMPRESSORS.items()}
WITH_STATE["dgc"] = {"compressor": "dgc", "k": 0.01, "seed": 7}


@pytest.mark.parametrize("name", WITH_STATE)
def test_training_on_from_a_checkpoint_is_training_that_never_stopped(tmp_path, name):
    params = {**WITH_STATE[name], "momentum": "nesterov"}
    arguments = {"folder": str(tmp_path), "shapes": SHAPES, "compression_params": params}
    results = {}
    for begin in (0, 3):
        folder = tmp_path / f"from{begin}"
        folder.mkdir()
        results[begin] = run(
            folder,
            "checkpoint",
            {**arguments, "begin": begin, "middle": 3, "end": 6},
            workers=2,
            servers=2,
            variables={"BYTEPS_PARTITION_BYTES": 64_000},
        )
    for whole, resumed in zip(results[0], results[3]):
        for i in range(len(SHAPES)):
            np.testing.assert_array_equal(resumed[f"w{i}"], whole[f"w{i}"])

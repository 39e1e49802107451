"""MXNet over Horovod and PyTorch over Gloo give the same bits."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compressors import COMPRESSORS
from tests.processes import clean_environ

pytest.importorskip("torch")
pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")

from tests.distributed.standing import run_horovod  # noqa: E402
from tests.distributed.test_two_way import arguments  # noqa: E402

HERE = Path(__file__).parent
PARTITION = {"BYTEPS_PARTITION_BYTES": "1000"}  # so that a tensor has several owners


def run_torch(folder, ways):
    """What two workers of torchrun have, by rank."""
    (folder / "ways.json").write_text(json.dumps(ways))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["--nproc-per-node", "2", HERE / "replayed.py", folder / "ways.json", folder]
    path = {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*torchrun, *words], env={**clean_environ(), **path, **PARTITION}, check=True, timeout=100
    )
    return [np.load(folder / f"{rank}.npz") for rank in range(2)]


def test_every_compressor_has_the_same_bits_in_both_frameworks(tmp_path):
    ways = [
        arguments(name, ef, momentum, steps=4)
        for name, ef, momentum in itertools.product(
            COMPRESSORS, [None, "corrected"], [None, "nesterov"]
        )
    ]
    theirs = run_horovod("several_steps", ways, 2, PARTITION)
    ours = run_torch(tmp_path, ways)
    for of_mxnet, of_torch in zip(theirs, ours):
        assert len(of_torch.files) == 4 * 4 * len(ways)
        for name in of_torch.files:
            expected = of_mxnet[name].ravel()
            np.testing.assert_array_equal(
                of_torch[name], expected, err_msg=f"{name}: {ways[int(name.partition('/')[0])]}"
            )

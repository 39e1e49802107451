"""PyTorch over Gloo matches a NumPy replay, and MXNet over Horovod bit for bit."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.compressors import COMPRESSORS, ONE_OF_EACH
from tests.processes import clean_environ

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")

from tests.mxnet.cluster.standing import run_horovod  # noqa: E402
from tests.mxnet.exchange.test_two_way import (  # noqa: E402
    arguments,
    assert_identical,
    check_replay,
    every_way,
    of_way,
)

ROOT = Path(__file__).parents[3]
TORCH = ROOT / ".venv-torch" / "bin" / "python"
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not TORCH.exists(), reason="make .venv-torch/.built makes PyTorch's environment"
    ),
]
PARTITION = {"BYTEPS_PARTITION_BYTES": "1000"}  # a tensor then has several owners


def run_torch(folder, ways, workers=2, **variables):
    """Return the results of torchrun's workers by rank."""
    (folder / "ways.json").write_text(json.dumps(ways))
    torchrun = [
        TORCH,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(workers),
    ]
    words = [ROOT / "tests" / "torch" / "replayed.py", folder / "ways.json", folder]
    path = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environ = {**clean_environ(), **path, **variables}
    subprocess.run([*torchrun, *words], env=environ, check=True, timeout=110)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(workers)]


def test_every_compressor_has_the_same_bits_over_horovod_and_with_pytorch(tmp_path):
    ways = [
        arguments(name, ef, momentum, steps=4, learning_rates=[0.1, 0.1, 0.05, 0.05])
        for name, ef, momentum in itertools.product(
            ONE_OF_EACH, [None, "corrected"], [None, "nesterov"]
        )
    ]
    theirs = run_horovod("several_steps", ways, 2, PARTITION)
    ours = run_torch(tmp_path, ways, **PARTITION)
    for of_mxnet, of_torch in zip(theirs, ours):
        names = [name for name in of_torch if re.search(r"/g\d", name)]
        assert len(names) == 4 * 4 * len(ways)
        for name in names:
            way = ways[int(name.partition("/")[0])]
            expected = of_mxnet[name].ravel()
            np.testing.assert_array_equal(of_torch[name], expected, err_msg=f"{name}: {way}")


@pytest.mark.parametrize("workers", [2, 4])
def test_pytorch_agrees_with_a_numpy_replay(workers, tmp_path):
    ways = [{**way, "steps": 4} for name in COMPRESSORS for way in every_way(name)]
    if workers != 2:
        ways = [arguments(name, steps=4) for name in ONE_OF_EACH]
    results = run_torch(tmp_path, ways, workers, BYTEPS_PARTITION_BYTES="1600")
    for way, options in enumerate(ways):
        of_ways = [of_way(result, way) for result in results]
        assert_identical(of_ways)
        size = np.dtype(options.get("dtype", "float32")).itemsize
        check_replay(of_ways, options, chunk_elements=1600 // size)

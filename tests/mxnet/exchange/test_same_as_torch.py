"""PyTorch over Gloo matches MXNet over Horovod bit for bit, which matches a NumPy replay."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.compressors import ONE_OF_EACH
from tests.mxnet.cluster.standing import run_horovod
from tests.mxnet.exchange.test_two_way import (
    CHUNK,
    PARTITION,
    check_replay,
    steps,
    ways_of,
)
from tests.processes import clean_environ

ROOT = Path(__file__).parents[3]
TORCH = ROOT / ".venv-torch" / "bin" / "python"
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not TORCH.exists(), reason="make .venv-torch/.built makes PyTorch's environment"
    ),
]
EVERY_WAY = {
    name: way
    for name, way in ways_of(ONE_OF_EACH, steps=4).items()
    if name.split("-")[1] != "vanilla"
}
BY_REPLAY = [name for name, way in EVERY_WAY.items() if "dtype" in way or "sparse" in name]


def run_torch(folder, ways, workers=2):
    """Return the results of torchrun's workers, by way and rank."""
    (folder / "ways.json").write_text(json.dumps(ways))
    torchrun = [TORCH, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    words = [str(workers), ROOT / "tests/torch/replayed.py", folder / "ways.json", folder]
    environ = {**clean_environ(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environ.update({name: str(value) for name, value in PARTITION.items()})
    subprocess.run([*torchrun, *words], env=environ, check=True, timeout=110)
    results = {way: [{} for _ in range(workers)] for way in ways}
    for rank in range(workers):
        for key, array in np.load(folder / f"{rank}.npz").items():
            way, _, name = key.partition("/")
            results[way][rank][name] = array
    return results


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory):
    return run_torch(tmp_path_factory.mktemp("two"), EVERY_WAY)


@pytest.mark.parametrize("way", BY_REPLAY)
def test_other_dtypes_and_sparse_feedback_agree_with_a_numpy_replay(of_torch, way):
    size = np.dtype(EVERY_WAY[way].get("dtype", "float32")).itemsize
    check_replay(of_torch[way], EVERY_WAY[way], chunk_elements=4 * CHUNK // size)


@pytest.mark.parametrize("momentum", [None, "nesterov"])
@pytest.mark.parametrize("ef", [None, "corrected"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_pytorch_has_the_bits_of_mxnet_over_horovod(of_torch, name, ef, momentum):
    way = f"{name}-{ef}-{momentum}"
    for theirs, ours in zip(run_horovod(steps, EVERY_WAY[way], 2, PARTITION), of_torch[way]):
        for key in {key for key in ours if key.startswith("g")}:
            np.testing.assert_array_equal(ours[key], theirs[key].ravel(), err_msg=key)

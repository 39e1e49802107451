"""benchmark/time_series.py trains on a set of aeon, whose place made series take here."""

import json
from pathlib import Path

import pytest

from tests.torch import scripts

pytest.importorskip("torch")

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmark"
MADE = """
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


@pytest.mark.parametrize("method", METHODS)
def test_made_series_are_learnt(method, tmp_path):
    (tmp_path / "aeon").mkdir()
    (tmp_path / "aeon" / "__init__.py").touch()
    (tmp_path / "aeon" / "datasets.py").write_text(MADE)
    script = tmp_path / "script.py"
    script.write_text(
        f"import runpy, sys\nsys.path[:0] = [{str(tmp_path)!r}, {str(BENCHMARK)!r}]\n"
        f"runpy.run_path({str(BENCHMARK / 'time_series.py')!r}, run_name='__main__')\n"
    )
    words = ["--set", "GunPoint", "--epochs", "25", *METHODS[method].split()]
    (line,) = [each for each in scripts.run(script, *words).splitlines() if each.startswith("{")]
    result = json.loads(line)
    assert result["accuracy"] > 0.9
    assert 0 < result["sent"] < 4 * 266_000 / 3

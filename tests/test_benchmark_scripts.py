"""The benchmarks of single processes print a row for each method."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "benchmark"


@pytest.mark.parametrize("script", ["queueing", "tiny"])
def test_a_benchmark_has_a_row_for_each_method(script, tmp_path):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([[50, 20], [33]]))
    options = {"queueing": ["--model", shapes], "tiny": ["--tensors", "3"]}[script]
    command = [sys.executable, SCRIPTS / f"{script}.py", "--steps", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    for method in ("fp32", "onebit", "topk 0.001", "dithering 2"):
        assert f"| {method} |" in done.stdout + done.stderr

"""The single-process benchmarks print a row for each method; identity.py compares two trees."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "benchmark"


@pytest.mark.parametrize("script", ["queueing", "tiny"])
def test_a_benchmark_has_a_row_for_each_method(script, tmp_path):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([[50, 20], [33]]))
    options = {"queueing": ["--model", shapes], "tiny": ["--tensors", "3"]}[script]
    command = [sys.executable, SCRIPTS / f"{script}.py", "--steps", "1", *options]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    for method in ("fp32", "onebit", "topk 0.001", "dithering 2"):
        assert f"| {method} |" in done.stdout + done.stderr


def test_each_kernel_is_compared_with_its_limit():
    command = [sys.executable, SCRIPTS / "kernels.py", "--sizes", "5000", "--seconds", "0"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {"onebit_compress_ef", "dgc_decompress", "unframe"} <= {row[0] for row in rows}
    assert all(len(row) == 7 and float(row[-1]) for row in rows)


def test_a_tree_is_equal_to_itself_and_a_parameter_that_differs_is_named(capsys, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    import identity

    options = [str(SCRIPTS.parent), "--ways", "local", "--compressors", "onebit"]
    monkeypatch.setattr(sys, "argv", ["identity.py", *options])
    with pytest.raises(SystemExit) as end:
        identity.main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert "| onebit, feedback | equal |" in said and "| none | equal |" in said
    ours = {f"{rank}/none/p0": np.full(2, 1.0) for rank in range(2)}
    theirs = {**ours, "1/none/p0": np.full(2, 1.5)}
    assert identity.first_difference("none", ours, theirs) == "p0 of worker 1"

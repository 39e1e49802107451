"""benchmark/cluster.py, in network namespaces of its own."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.namespaces import namespaces, needs_namespaces

SCRIPT = Path(__file__).resolve().parents[2] / "benchmark" / "cluster.py"
RATE = 200e6
pytestmark = needs_namespaces


@pytest.fixture
def measure(tmp_path):
    """Runs the benchmark with two workers on links of RATE; returns the rows of its table."""
    before = namespaces()
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([[500, 200], [33], [70, 70]]))

    def run(only):
        table = tmp_path / "table.csv"
        options = f"--rates {RATE:.0f} --workers 2 --servers 1 --steps 3 --model {shapes}"
        command = [sys.executable, str(SCRIPT), *options.split(), "--only", only]
        picture = tmp_path / "table.png"
        command += ["--csv", str(table), "--plot", str(picture)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr
        assert picture.stat().st_size > 0
        with open(table, newline="") as file:
            return list(csv.DictReader(file))

    yield run
    assert namespaces() == before


@pytest.mark.parametrize("only", ["MXNet fp32", "onebit, server", "onebit, horovod"])
def test_a_step_takes_no_less_than_its_bytes_do(measure, only):
    if "horovod" in only:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    (row,) = measure(only)
    assert row["method"] == only
    payload = 104_933 * 4 / (1 if "fp32" in only else 32)
    assert payload / 1e6 < float(row["MB a worker"]) < 2.5 * payload / 1e6 + 0.1
    assert float(row["of the limit"]) > 0.9  # what is counted is what the links let through

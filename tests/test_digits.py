"""The digits example trains on a real cluster."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))

from common.log import read_log

ROOT = Path(__file__).resolve().parents[1]
ONEBIT = ["--compressor", "onebit", "--onebit-scaling", "--ef", "vanilla",
          "--compress-momentum", "nesterov"]


@pytest.fixture(scope="module", params=[[], ONEBIT], ids=["uncompressed", "onebit"])
def run(request, tmp_path_factory):
    """One epoch on two workers and one server: what was printed, and the log's records."""
    log = tmp_path_factory.mktemp("digits") / "log.jsonl"
    command = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1",
               sys.executable, "example/digits/train.py", *request.param,
               "--num-epochs", "1", "--logging-file", str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, read_log(str(log))


def test_the_log_has_one_complete_record_an_epoch(run):
    _, records = run
    (record,) = records
    assert set(record) == {"epoch", "train_loss", "validation_accuracy", "seconds",
                           "pushed_bytes", "pulled_bytes", "step_loss"}
    assert record["epoch"] == 1
    steps = 1437 // (2 * 32)  # images in batches of 32 for two workers
    assert len(record["step_loss"]) == steps
    assert record["train_loss"] == pytest.approx(sum(record["step_loss"]) / steps)
    assert 0.2 < record["validation_accuracy"] <= 1, "one epoch should already beat guessing"
    assert record["pushed_bytes"] > 0 and record["pulled_bytes"] > 0 and record["seconds"] > 0


def test_both_workers_end_with_the_same_parameters(run):
    output, _ = run
    checksums = dict(re.findall(r"rank (\d) of 2: checksum of the parameters (\w+)", output))
    assert set(checksums) == {"0", "1"}
    assert checksums["0"] == checksums["1"]

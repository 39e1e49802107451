"""The digits example trains on a real cluster."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example" / "digits"))

from common.log import read_log
from data import batches, load_images
from demo import broken_claims

ROOT = Path(__file__).resolve().parents[1]
ONEBIT = [
    "--compressor",
    "onebit",
    "--onebit-scaling",
    "--ef",
    "vanilla",
    "--compress-momentum",
    "nesterov",
]


@pytest.fixture(scope="module", params=[[], ONEBIT], ids=["uncompressed", "onebit"])
def run(request, tmp_path_factory):
    """One epoch on two workers and one server: what was printed, and the log's records."""
    log = tmp_path_factory.mktemp("digits") / "log.jsonl"
    command = [
        sys.executable,
        "-m",
        "bpslaunch",
        "--local",
        "-n",
        "2",
        "-s",
        "1",
        sys.executable,
        "example/digits/train.py",
        *request.param,
        "--num-epochs",
        "1",
        "--logging-file",
        str(log),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, read_log(str(log))


def test_the_log_has_one_complete_record_an_epoch(run):
    _, records = run
    (record,) = records
    assert set(record) == {
        "epoch",
        "train_loss",
        "validation_accuracy",
        "seconds",
        "pushed_bytes",
        "pulled_bytes",
        "step_loss",
    }
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


def test_workers_share_the_images_out_without_overlap():
    train, _ = load_images()
    seen = [
        pixels.asnumpy() for rank in range(3) for pixels, _ in batches(train, 16, rank, 3, (0, 1))
    ]
    assert len(seen) == 3 * (1437 // 48)
    images = {image.tobytes() for image in np.concatenate(seen)}
    assert len(images) == len(seen) * 16


def test_a_batch_size_that_leaves_a_worker_without_images_is_refused():
    train, _ = load_images()
    with pytest.raises(ValueError, match="--batch-size must be at most 718 .*, got 719"):
        next(batches(train, 719, 0, 2, (0, 1)))


PLAIN = {"accuracy": 0.98, "pushed": 2000.0, "pulled": 2000.0}


@pytest.mark.parametrize(
    "changed, said",
    [
        ({}, []),
        ({"accuracy": 0.96}, ["points below"]),
        ({"accuracy": 0.94}, ["not above 95%", "points below"]),
        ({"pushed": 101.0}, ["pushed"]),
        ({"pulled": 101.0}, ["pulled"]),
    ],
)
def test_the_demo_names_every_claim_that_does_not_hold(changed, said):
    onebit = {"accuracy": 0.975, "pushed": 100.0, "pulled": 100.0, **changed}
    broken = broken_claims(PLAIN, onebit)
    assert len(broken) == len(said)
    for message, part in zip(broken, said):
        assert part in message

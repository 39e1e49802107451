"""The digits example trains on a real cluster."""

import re
import subprocess
import sys
from pathlib import Path

import compare
import numpy as np
import pytest
from common.digits import load_images
from common.log import read_log
from common.stats import short_names, stats_table
from data import batches
from demo import broken_claims
from picture import draw_accuracy

ROOT = Path(__file__).resolve().parents[3]
ONEBIT = "--compressor onebit --onebit-scaling --ef vanilla --compress-momentum nesterov".split()
BPSLAUNCH = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2"]
HOROVODRUN = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
LAUNCHED = {
    "onebit": ([*BPSLAUNCH, "-s", "1"], ONEBIT),
    "onebit by bpslaunch on horovod": ([*BPSLAUNCH, "--backend", "horovod"], ONEBIT),
    "dgc by horovodrun": (HOROVODRUN, ["--compressor", "dgc", "--k", "0.01"]),
}


@pytest.fixture(scope="module", params=LAUNCHED)
def run(request, tmp_path_factory):
    """Train one epoch on two workers; returns the output and the log's records."""
    if "horovod" in request.param:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    log = tmp_path_factory.mktemp("digits") / "log.jsonl"
    launch, arguments = LAUNCHED[request.param]
    script = [sys.executable, "example/digits/train.py", *arguments]
    command = [*launch, *script, "--num-epochs", "1", "--stats", "--logging-file", str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
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
    steps = 1437 // (2 * 32)  # two workers with batches of 32
    assert len(record["step_loss"]) == steps
    assert record["train_loss"] == pytest.approx(sum(record["step_loss"]) / steps)
    assert 0.2 < record["validation_accuracy"] <= 1, "one epoch should already beat guessing"
    assert record["pushed_bytes"] > 0 and record["pulled_bytes"] > 0 and record["seconds"] > 0


def test_both_workers_end_with_the_same_parameters(run):
    output, _ = run
    checksums = dict(re.findall(r"rank (\d) of 2: checksum of the parameters (\w+)", output))
    assert set(checksums) == {"0", "1"}
    assert checksums["0"] == checksums["1"]


def test_stats_of_every_tensor_are_printed_by_one_worker_in_100_columns(run):
    output, _ = run
    # The prefix of bpslaunch or horovodrun.
    prefixed = re.compile(r"\[(?:worker )?\d\](?:<stdout>:| )")
    lines = [prefixed.sub("", line) for line in output.splitlines()]
    (head,) = [i for i, line in enumerate(lines) if line.startswith("tensor ")]
    table = lines[head + 1 : head + 13]  # 10 tensors, a rule, and the total
    assert [line.split()[:2] for line in (table[0], table[-1])] == [
        ["dense0_weight", "1,572,864"],
        ["total", "1,665,448"],
    ]
    assert max(map(len, lines[head:])) <= 100


def test_workers_share_the_images_out_without_overlap():
    train, _ = load_images()
    seen = [
        pixels.asnumpy() for rank in range(3) for pixels, _ in batches(train, 16, rank, 3, (0, 1))
    ]
    assert len(seen) == 3 * (1437 // 48)
    images = {image.tobytes() for image in np.concatenate(seen)}
    assert len(images) == len(seen) * 16


VALIDATION = """
import sys
sys.path[:0] = ["example", "example/digits"]
import mxnet as mx
import numpy as np
import gluon_gc as bps
from common.digits import Images
from train import accuracy

seen = []

def network(pixels):
    seen.append(len(pixels))
    return mx.nd.one_hot(pixels, 10)

bps.init()
labels = np.arange(9, dtype=np.float32)
predicted = np.where(labels < 6, labels, 0)
print("saw", accuracy(network, Images(predicted, labels)), *seen)
bps.shutdown()
"""


def test_the_validation_accuracy_is_that_of_all_workers_images():
    command = [*BPSLAUNCH, sys.executable, "-c", VALIDATION]  # with as many servers as by default
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(re.findall(r"\[worker (\d)\] saw (.*)", done.stdout))
    assert said == {"0": f"{6 / 9} 5", "1": f"{6 / 9} 4"}


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


def test_names_lose_the_words_that_all_begin_with_and_keep_their_ends():
    names = ["net0_conv0_weight", "net0_conv1_weight", "net0_long_dense_bias"]
    assert short_names(names, 12) == dict(
        zip(names, ["conv0_weight", "conv1_weight", "…_dense_bias"])
    )
    assert short_names(["net0_weight"], 20) == {"net0_weight": "net0_weight"}


def test_the_table_of_stats_fits_whatever_the_numbers():
    values = {"raw_bytes": 4e8, "pushed_bytes": 4e8, "pulled_bytes": 4e8, "ratio": 1.0}
    values.update(bits_per_element=32.0, compress_seconds=1.0, wait_seconds=100.0)
    values["decompress_seconds"] = 10.0
    names = [f"resnet0_stage{i}_a_long_name_of_a_block_weight" for i in range(3)]
    total = {**values, "exposed_seconds": 10.0}
    text = stats_table({"tensors": dict.fromkeys(names, values), "total": total})
    assert max(map(len, text.splitlines())) <= 100
    assert "100000.00" in text and "Exposed: 10000.00 ms" in text


def test_parts_of_compare_make_a_page_with_a_table_and_a_picture(tmp_path):
    accuracy = 0.875
    sent = {"pushed_bytes": 2e6, "pulled_bytes": 1e6, "step_loss": [1.0, 0.5], "seconds": 1.0}
    run = [{"epoch": 1, "validation_accuracy": accuracy, **sent}]
    draw_accuracy({"onebit": [run]}, tmp_path / "picture.svg")
    assert "onebit" in (tmp_path / "picture.svg").read_text()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compare.BEGIN}\nold\n{compare.END}\nafter\n")
    compare.write_section(page, compare.section({"onebit": [run]}))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert f"| onebit | {accuracy:.2%} | {accuracy:.2%} to {accuracy:.2%} | +0.00 |" in text


@pytest.mark.parametrize("accuracy, broken", [(0.981, 0), (0.979, 1)])
def test_compare_names_a_setting_that_ends_more_than_a_point_below(accuracy, broken):
    rows = {"uncompressed": {"accuracy": 0.99}, "topk 0.01": {"accuracy": accuracy}}
    claims = compare.broken_claims(rows)
    assert len(claims) == broken
    assert all("topk 0.01" in claim for claim in claims)


def test_the_page_on_convergence_has_every_setting_that_compare_trains():
    page = compare.PAGE.read_text()
    for name in compare.SETTINGS:
        assert f"| {name} |" in page, f"run {Path(compare.__file__).relative_to(ROOT)}"

"""The PyTorch examples train under torchrun, resume from checkpoints, and write logs."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from common.log import read_configurations, read_log

from tests.torch import scripts

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image", reason="the ImageNet example reads images with Pillow")

ROOT = Path(__file__).resolve().parents[3]
ONEBIT = ["--compressor", "onebit", "--onebit-scaling", "--ef", "vanilla"]
ONEBIT += ["--compress-momentum", "nesterov"]
DGC = ["--compressor", "dgc", "--k", "0.01", "--dgc-warmup-epochs", "1", "--compressor-seed", "1"]
DGC += ["--compress-momentum", "nesterov"]
CHECKSUM = re.compile(r"rank (\d) of \d: checksum of the parameters (\w+)")

pytestmark = pytest.mark.timeout(240)


def trained(script, arguments, folder, workers=2, start=scripts.run):
    """Run an example; returns the workers' checksum, the output, and the log.

    `start` is `scripts.run`, or `scripts.run_torchrun`, which takes longer.
    """
    log = folder / "log.jsonl"
    arguments = [*map(str, arguments), "--logging-file", str(log)]
    said = start(ROOT / "example" / "pytorch" / script, *arguments, workers=workers)
    sums = dict(CHECKSUM.findall(said))
    assert len(sums) == workers and len(set(sums.values())) == 1
    return sums["0"], said, read_log(str(log))


def check_learnt(log, said, saving):
    """Check two epochs of the digits on two workers, which sent `saving` times fewer bytes."""
    assert [record["epoch"] for record in log] == [1, 2]
    last = log[-1]
    assert last["validation_accuracy"] > 0.9
    assert f"validation accuracy {last['validation_accuracy']:.4f}" in said
    assert "2.82k/2.82k" in said  # images on the progress bar
    plain = 416_362 * 4 * 2 * (1437 // 64)
    for way in ("pushed_bytes", "pulled_bytes"):
        assert plain / last[way] >= saving
    # A tensor that all workers receive whole comes half from this worker.
    assert last["pulled_bytes"] / 2.1 <= last["pushed_bytes"] <= last["pulled_bytes"]


@pytest.mark.parametrize("compression, saving", [([], 1), (DGC, 10)], ids=["plain", "dgc"])
def test_the_digits_are_learnt_on_two_workers(compression, saving, tmp_path):
    _, said, log = trained("digits.py", ["--num-epochs", 2, *compression], tmp_path)
    check_learnt(log, said, saving)
    (configuration,) = read_configurations(str(tmp_path / "log.jsonl"))
    assert configuration["workers"] == 2


def test_training_goes_on_as_if_it_had_never_stopped_and_with_more_workers(tmp_path):
    save = ["--save", tmp_path / "saved", "--save-period", 1, "--stats"]
    whole, said, log = trained("digits.py", ["--num-epochs", 2, *ONEBIT, *save], tmp_path)
    check_learnt(log, said, saving=31)
    names = {path.name for path in (tmp_path / "saved" / "epoch-1").iterdir()}
    assert names == {"model.pt", "compression-0.pt", "compression-1.pt"}
    one_worker_prints = said.count("1,665,448") == 1
    assert re.search(r"^8\.weight +1,572,864 ", said, re.M) and one_worker_prints, said
    resume = ["--resume", tmp_path / "saved" / "epoch-1"]
    arguments = ["--num-epochs", 2, *ONEBIT, *resume]
    resumed, _, both = trained("digits.py", arguments, tmp_path)
    assert resumed == whole
    assert [record["epoch"] for record in both] == [1, 2, 2]
    assert both[2]["step_loss"] == log[1]["step_loss"]
    _, said, log = trained("digits.py", arguments, tmp_path, workers=3)
    assert log[-1]["validation_accuracy"] > 0.9, said


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Create images in ImageNet's layout: train/CLASS/*.JPEG and val/CLASS/*.JPEG."""
    folder, random = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for part, number in (("train", 64), ("val", 22)):
        for i in range(number):
            image = folder / part / f"n{i % 10:08}" / f"{i}.JPEG"
            image.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 256, (40 + i % 7, 48, 3), np.uint8)
            Image.fromarray(pixels).save(image)
    return folder


@pytest.mark.timeout(440)
def test_imagenet_trains_on_folders_of_images_and_goes_on(folders, tmp_path):
    arguments = [folders, "-j", 1, "--input-size", 32, "--batch-size", 16]
    arguments += ["--epochs", 2, "--lr", 0.01, "--lr-mode", "cosine", "--warmup-epochs", 1]
    arguments += ["--compressor", "topk", "--k", 0.05, "--ef", "vanilla"]
    save = ["--save", tmp_path / "saved", "--save-period", 1]
    start = partial(scripts.run_torchrun, timeout=200)  # it takes 40 s beside other tests
    whole, said, log = trained("imagenet.py", [*arguments, *save], tmp_path, start=start)
    for record in log:
        assert len(record["step_loss"]) == 2
        assert 0 <= record["validation_accuracy"] <= record["validation_top5"] <= 1
    assert re.search(r"128/128 \[.*image/s", said)
    resume = ["--resume", tmp_path / "saved" / "epoch-1"]
    resumed, _, both = trained("imagenet.py", [*arguments, *resume], tmp_path)
    assert resumed == whole and both[-1]["step_loss"] == log[-1]["step_loss"]


LOCAL_STEPS = "--algorithm local_steps --every 4 --compressor onebit --onebit-scaling --ef vanilla"


def test_the_language_model_learns_and_goes_on_as_if_it_had_never_stopped(tmp_path):
    arguments = "--width 32 --depth 1 --heads 2 --context 32 -b 4 --steps 24 --eval-every 12"
    arguments = [*arguments.split(), "--eval-windows", 16, "--lr", 0.01, *LOCAL_STEPS.split()]
    arguments += ["--optimizer", "muon"]  # two optimizers' states: AdamW's is one of them
    save = ["--save", tmp_path / "saved", "--save-period", 10, "--sample", 20]
    whole, said, log = trained("language_model.py", [*arguments, *save], tmp_path)
    assert [record["step"] for record in log] == [12, 24]
    assert [len(record["step_loss"]) for record in log] == [12, 12]
    untrained = np.log(256)
    first, last = (record["validation_loss"] for record in log)
    assert untrained > first > last and log[0]["step_loss"][0] > log[1]["train_loss"] > 3
    payload = 30_432 / 8
    for way in ("pushed_bytes", "pulled_bytes"):
        assert 6 * payload < log[1][way] < 1.5 * 6 * payload + 100
    assert f"validation loss {last:.4f} nats per byte" in said and "\ndef " in said
    assert re.search(r"24.0/24.0 \[.*loss=.*ratio=.*sent=.*wait=", said)
    resume = ["--resume", tmp_path / "saved" / "step-10", "--sample", 0]
    resumed, said, both = trained("language_model.py", [*arguments, *resume], tmp_path)
    assert resumed == whole and "\ndef " not in said
    assert both[-1]["step_loss"] == log[-1]["step_loss"]
    assert both[-1]["validation_loss"] == last


def test_the_built_in_resnet_has_the_parameters_that_resnet_18_is_known_for():
    code = """
import sys
sys.modules["torchvision"] = None
import torch
from resnet import network
print(sum(p.numel() for p in network("resnet18", 1000).parameters()))
print(*network("resnet18", 10)(torch.zeros(2, 3, 32, 32)).shape)
try:
    network("vgg11", 10)
except ValueError as error:
    print(error)
"""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}/example/pytorch"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    known = "--arch must be resnet18, resnet34 without torchvision, got vgg11"
    assert done.stdout.splitlines() == ["11689512", "2 10", known], done.stderr

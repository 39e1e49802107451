"""`python -m gluon_gc plan` in real processes, and the models that it reads with PyTorch."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn import BatchNorm1d, Embedding, Linear, Sequential

from gluon_gc.auto.prediction import methods
from gluon_gc.plan import model
from tests.torch.scripts import command, environ

HERE = ["--rate", "10Mbit", "--workers", "8"]
TIMEOUT = 280
pytestmark = pytest.mark.timeout(300)


def run(words):
    """Run a command; return what it prints."""
    done = subprocess.run(
        words, env=environ(), capture_output=True, encoding="utf-8", timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def planned(*words):
    return run([sys.executable, "-m", "gluon_gc", "plan", *map(str, words)])


def rows(text):
    """Return the cells of the table's rows."""
    table = text.split("\n\n")[1].splitlines()
    return [row.split() for row in table[1:]]


def test_a_number_of_parameters_on_a_network_that_is_described():
    text = planned("--parameters", "3M", *HERE, "--per-machine", 2, "--step-seconds", 0.1)
    assert "3,000,000 parameters in 3 tensors" in text
    assert "8 workers on 4 machines, links of 10 Mbit/s (given)" in text
    assert "two levels" in text
    found = rows(text)
    speedups = [float(row[-1]) for row in found]
    assert len(found) == len(methods("sgd"))
    assert speedups == sorted(speedups, reverse=True) and speedups[-1] == 1 and speedups[0] > 5


def test_a_safetensors_file(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    save_file({"w": torch.zeros(300, 200), "b": torch.zeros(300)}, path)
    assert model.shapes_of(str(path)) == {"b": (300,), "w": (300, 200)}


def test_workers_of_torchrun_measure_their_link_for_a_state_dict(tmp_path):
    path = tmp_path / "m.pt"
    torch.save(
        {"epoch": 3, "model": Sequential(Linear(30, 900), Linear(900, 5)).state_dict()}, path
    )
    words = command("-m", "gluon_gc", "plan", "--model", path, "--json", "--step-seconds", 0.01)
    found = json.loads(run([*words, "--optimizer", "adam"]))
    assert found["workers"] == found["machines"] == found["sharing"] == 2
    assert not found["rate_given"] and found["rate"] > 1e6
    assert found["parameters"] == 30 * 900 + 900 + 900 * 5 + 5 and found["tensors"] == 4
    assert {row["method"] for row in found["predictions"]} == {m.name for m in methods("adam")}
    hooks = [row for row in found["predictions"] if row["algorithm"] is None]
    assert hooks and all(row["step"] >= 0.01 for row in hooks)


def test_a_state_dict_without_buffers_and_with_tied_weights_once(tmp_path):
    net = Sequential(Embedding(50, 8), BatchNorm1d(8), Linear(8, 50, bias=False))
    net[2].weight = net[0].weight
    path = tmp_path / "m.pth"
    for saved in (net.state_dict(), {"state_dict": net.state_dict(), "lr": 0.1}):
        torch.save(saved, path)
        shapes = model.shapes_of(str(path))
        assert shapes == {"0.weight": (50, 8), "1.weight": (8,), "1.bias": (8,)}


@pytest.mark.parametrize("content", [b"hello", b"root:x:0:0\n", b"\x80\x04", b""])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="m.pt is not a state_dict"):
        model.shapes_of(str(path))


class Custom:
    pass


def test_a_file_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"model": Custom()}, path)
    with pytest.raises(ValueError, match="m.pt is not a state_dict"):
        model.shapes_of(str(path))


def test_a_model_of_torchvision_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="--model torchvision:resnet5 ?.*"):
        model.shapes_of("torchvision:resnet5")


def test_shapes_of_torchvision(monkeypatch):
    class Models:
        @staticmethod
        def get_model(name):
            return Linear(3, int(name))

    torchvision = type(sys)("torchvision")
    torchvision.models = Models
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    assert model.shapes_of("torchvision:7") == {"weight": (7, 3), "bias": (7,)}


def test_sparse_tensors_of_a_state_dict_do_not_count(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"s": torch.ones(4, 4).to_sparse(), "w": torch.ones(4, 3)}, path)
    assert model.shapes_of(str(path)) == {"w": (4, 3)}


def test_a_plan_that_is_terminated_leaves_no_workers():
    words = [sys.executable, "-m", "gluon_gc", "plan", "--parameters", "3M", *HERE]
    plan = subprocess.Popen(words, env=environ())
    children = Path(f"/proc/{plan.pid}/task/{plan.pid}/children")
    workers = []
    while plan.poll() is None and len(workers) < 2:
        workers = [Path("/proc", pid) for pid in children.read_text().split()]
        time.sleep(0.05)
    plan.terminate()
    assert plan.wait(TIMEOUT) == 128 + signal.SIGTERM and len(workers) == 2
    assert not any(worker.exists() for worker in workers)

"""docs/tutorials/pytorch.md: its script trains and resumes under each launcher that it names."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.processes import clean_environ
from tests.torch import scripts

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="the page's data are scikit-learn's")

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "tutorials" / "pytorch.md"
(SCRIPT,) = re.findall(r"^`train.py`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
LAUNCHERS = {
    "python": [],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
    "bpslaunch": [sys.executable, str(ROOT / "bpslaunch.py"), "--local", "-n", "2"],
}
LAUNCHERS["torchrun"] += ["--nproc-per-node", "2"]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def run(tmp_path):
    """Run the page's script in a folder; returns its output."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(launcher, *arguments):
        python = [] if launcher == "torchrun" else [sys.executable]
        return finish([*LAUNCHERS[launcher], *python, "train.py", *arguments], tmp_path)

    return run


def finish(command, folder, **variables):
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**clean_environ(), **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=110,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def epochs(said):
    """Return the accuracy of each epoch from the script's output."""
    return {int(e): float(a) for e, a in re.findall(r"epoch (\d+): .* accuracy ([\d.]+)", said)}


def parameters(folder):
    return torch.load(folder / "model.pt", weights_only=True)["model"]


def test_two_workers_learn_and_go_on_under_another_launcher_as_if_never_stopped(run, tmp_path):
    whole = run("torchrun", "--epochs", "4", "--checkpoints", "whole")
    assert list(epochs(whole)) == [1, 2, 3, 4] and epochs(whole)[4] > 0.9
    shown = PAGE.read_text()
    assert abs(epochs(shown)[4] - epochs(whole)[4]) < 0.05
    (sent,) = re.findall(r"2 workers; each sent \d+ bytes in a step\n", whole)
    assert sent in shown
    assert list(epochs(run("bpslaunch", "--epochs", "2"))) == [1, 2]
    (tmp_path / "checkpoints" / "epoch-9").mkdir()  # an incomplete checkpoint
    resumed = scripts.run("train.py", "--epochs", "4", PWD=str(tmp_path))
    assert epochs(resumed) == {epoch: epochs(whole)[epoch] for epoch in (3, 4)}
    expected = parameters(tmp_path / "whole" / "epoch-4")
    found = parameters(tmp_path / "checkpoints" / "epoch-4")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_one_worker_needs_no_launcher(run):
    said = run("python", "--epochs", "2")
    assert epochs(said)[2] > 0.8 and "1 workers; each sent " in said


def test_one_command_starts_it_on_all_machines(tmp_path):
    """Both machines are this one, and the remote shell is a local one."""
    (tmp_path / "train.py").write_text(SCRIPT)
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nexec sh -c "$2"')
    shell.chmod(0o755)
    cluster = {
        "CLUSTER_HOSTS": "127.0.0.1 localhost",
        "CLUSTER_SERVERS": "0",
        "CLUSTER_REMOTE_SHELL": str(shell),
        "CLUSTER_REPOSITORY": str(ROOT),
        "CLUSTER_PYTHON": sys.executable,
        "CLUSTER_WORK": str(tmp_path),
        "NVIDIA_VISIBLE_DEVICES": "",
        "DMLC_PS_ROOT_PORT": str(20000 + os.getpid() % 10000),
    }
    command = [ROOT / "example" / "cluster" / "run.sh", "--", "python", "train.py", "--epochs", "1"]
    said = finish(command, tmp_path, **cluster)
    assert "[worker 0] 2 workers; each sent 8506 " in said  # compressed


def test_a_converted_ddp_script_compresses_and_loads_checkpoints_from_before(tmp_path):
    page = ROOT / "docs" / "guides" / "convert-ddp.md"
    (script,) = re.findall(r"^`train.py`:\n\n```python\n(.*?)^```", page.read_text(), re.S | re.M)
    (tmp_path / "train.py").write_text(script)
    train = partial(scripts.run, "train.py", PWD=str(tmp_path))
    assert re.search(r"compressed 3\d times", train())
    steps = [torch.load(tmp_path / "compression0.pt", weights_only=True)["steps"]]
    for kept in (True, False):
        if not kept:  # one worker lacks its file
            (tmp_path / "compression1.pt").unlink()
        train()
        steps.append(torch.load(tmp_path / "compression1.pt", weights_only=True)["steps"])
    assert steps == [20, 40, 20]

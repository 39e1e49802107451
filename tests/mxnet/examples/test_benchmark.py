"""Scripts of benchmark/, run in network namespaces."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mxnet.cluster.hosts import needs_namespaces
from tests.processes import heed_interrupts

SCRIPTS = Path(__file__).resolve().parents[3] / "benchmark"
RATE, MOVED = 200e6, "MB per machine"
TORCH = SCRIPTS.parent / ".venv-torch" / "bin" / "python"
SMALL = f"{SCRIPTS / 'epoch.py'} --rate {RATE:.0f} --workers 2 --servers 1 --images 64 --epochs 2"
SMALL += " --batch-size 8"
pytestmark = needs_namespaces


def output(*command):
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


@contextmanager
def started(*command):
    """Start a benchmark; after the block, none of its namespaces may be left."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=heed_interrupts,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)
        assert f"gc{process.pid}-" not in output("ip", "netns")


@pytest.fixture
def measure(tmp_path):
    """Run a benchmark; returns the rows of its table."""

    def run(*command):
        table = tmp_path / "table.csv"
        with started(*command, "--csv", str(table)) as process:
            _, errors = process.communicate(timeout=110)
            assert process.returncode == 0, errors
        with open(table, newline="") as file:
            return list(csv.DictReader(file))

    return run


@pytest.mark.parametrize(
    "only, drawn",
    [
        ("MXNet fp32", []),
        ("onebit, server", ["server0", "worker0", "worker1", "push", "sum and compress again"]),
        ("onebit, horovod", ["worker0", "worker1", "alltoall", "allgather", "decompress"]),
    ],
)
def test_a_step_takes_no_less_than_its_bytes_do_and_its_traces_make_a_picture(
    measure, tmp_path, monkeypatch, only, drawn
):
    if "horovod" in only:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    traces, shapes, picture = (tmp_path / name for name in ("traces", "shapes.json", "step.svg"))
    if drawn:
        for name, value in (("ON", 1), ("START_STEP", 4), ("END_STEP", 4), ("DIR", traces)):
            monkeypatch.setenv(f"BYTEPS_TRACE_{name}", str(value))
    shapes.write_text(json.dumps([[500, 200], [33], [70, 70]]))
    steps = 3 if "fp32" in only else 30  # processor time is counted in ticks of 10 ms
    options = f"--rates {RATE:.0f} --workers 2 --servers 1 --steps {steps} --model {shapes}"
    command = [str(SCRIPTS / "cluster.py"), *options.split(), "--only", only]
    (row,) = measure(*command, "--plot", str(tmp_path / "table.png"))
    assert (tmp_path / "table.png").stat().st_size > 0
    assert row["method"] == only
    payload = 104_933 * 4 / (1 if "fp32" in only else 32)
    assert payload / 1e6 < float(row[MOVED]) < 2.5 * payload / 1e6 + 0.1
    assert float(row["processor s"]) > 0
    assert float(row["of the limit"]) > 0.9  # the limit is computed from the counted bytes
    if drawn:
        output(sys.executable, str(SCRIPTS / "timeline.py"), str(traces), str(picture))
        page = picture.read_text()
        assert [name for name in drawn if f">{name}</text>" not in page] == []


def test_a_machines_link_carries_as_much_for_two_workers_as_for_one(measure, tmp_path):
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([[500, 2000], [33]]))
    options = f"--rates {RATE:.0f} --servers 1 --steps 3 --model {shapes}"
    command = [str(SCRIPTS / "cluster.py"), *options.split(), "--only", "onebit, server"]
    of_one, of_two = (
        float(measure(*command, "--workers", str(2 * each), "--per-machine", str(each))[0][MOVED])
        for each in (1, 2)
    )
    assert of_two < 1.05 * of_one


def test_an_epoch_of_the_example_is_timed_and_its_bytes_are_counted(measure):
    options = SMALL.replace("--images 64", "--images 128")
    (row,) = measure(*options.split(), "--only", "onebit")
    assert row["job"] == "onebit"
    assert float(row["seconds per epoch"]) > 0
    assert row["validation accuracy"].endswith("%")
    payload = 275_000 / 8 / 1e6  # of ResNet-20's parameters, each way
    counted = (8 - 4) / 8  # of an epoch: at most 4 of 8 steps precede the first count
    assert 2 * payload * counted < float(row["MB per worker and step"]) < 4 * payload


@pytest.mark.skipif(not TORCH.exists(), reason="make .venv-torch/.built makes its environment")
def test_the_language_model_is_trained_once_and_its_loss_is_timed(measure, tmp_path):
    whole = 30_432 * 4 / 1e3
    model = "--width 32 --depth 1 --heads 2 --context 32 --batch-size 4 --eval-windows 16"
    options = f"--workers 2 --steps 20 --eval-every 10 --rates {RATE:.0f}"
    command = [SCRIPTS / "language_model.py", *options.split(), "--training", model]
    command += ["--torch-python", TORCH, "--only", "^DDP$"]
    command += ["--results", tmp_path / "results", "--plot", tmp_path / "losses.png"]
    (row,) = measure(*map(str, command))
    assert row["method"] == "DDP" and (tmp_path / "losses.png").stat().st_size > 0
    assert 3 < float(row["loss"]) < 6
    # The first steps may be over before the benchmark begins to count.
    assert whole / 2 < float(row["kB per step"]) < 1.3 * whole + 3
    seconds = float(row["s per step, 200 Mbit/s"])
    assert 0 <= float(row["s until DDP's loss + 0.01, 200 Mbit/s"]) <= 20 * seconds + 0.1
    # Neither call trains again: even the seconds are the same.
    assert measure(*map(str, command)) == measure(*map(str, command), "--finished") == [row]


@pytest.mark.skipif(not TORCH.exists(), reason="make .venv-torch/.built makes its environment")
def test_local_steps_are_compared_with_ddp_with_the_same_optimizer(measure, tmp_path):
    model = "--width 32 --depth 1 --heads 2 --context 32 --batch-size 4 --eval-windows 16"
    options = ["--steps", "20", "--eval-every", "10", "--seeds", "1", "--training", model]
    command = [SCRIPTS / "long_runs.py", *options, "--torch-python", TORCH]
    command += ["--only", "^local_steps 10, 4 bits, Muon", "--results", tmp_path]
    ddp, local = measure(*map(str, command))
    assert [ddp["method"], local["method"]] == ["DDP, Muon", "local_steps 10, 4 bits, Muon"]
    assert 3 < float(ddp["loss"]) < float(local["loss"]) < 6
    assert float(local["- DDP"]) == pytest.approx(
        float(local["loss"]) - float(ddp["loss"]), abs=2e-4
    )
    assert float(local["kB per step"]) < float(ddp["kB per step"]) / 4


@pytest.mark.skipif(not TORCH.exists(), reason="make .venv-torch/.built makes its environment")
def test_two_trees_are_compared_and_each_runs_its_own_code(tmp_path):
    shapes, other = tmp_path / "shapes.json", tmp_path / "other"
    shapes.write_text(json.dumps([[50, 20], [33]]))
    package = SCRIPTS.parent / "gluon_gc"
    shutil.copytree(package, other / "gluon_gc", ignore=shutil.ignore_patterns("__pycache__"))
    hook = other / "gluon_gc" / "torch" / "ddp.py"
    begin = '    """Implement `compression_hook`."""\n'
    slow = f"{begin}    __import__('time').sleep(0.5)\n"
    assert begin in hook.read_text()
    hook.write_text(hook.read_text().replace(begin, slow))
    options = f"--rounds 1 --steps 1 --workers 2 --rates {RATE:.0f} --model {shapes}"
    command = [str(SCRIPTS / "compare_trees.py"), str(other), *options.split()]
    with started(*command, "--only", "hook, onebit") as process:
        said, errors = process.communicate(timeout=110)
        assert process.returncode == 0, errors
    cells = [line.strip("| ").split(" | ") for line in said.splitlines() if "hook" in line]
    used, dropped, exchanges = ([float(cell) for cell in row[1:3]] for row in cells)
    assert used[1] > 0.5 > 2 * used[0] and dropped[1] > 0.5 > 2 * dropped[0], said
    assert float(cells[0][3].split()[0]) == pytest.approx(used[0] / used[1], abs=0.1)
    assert exchanges[1] == pytest.approx(dropped[1] / used[1], rel=0.1)


def test_ctrl_c_ends_all_processes():
    with started(*SMALL.split(), "--only", "onebit") as process:
        host, workers = f"gc{process.pid}-1", []
        while not workers:
            assert process.poll() is None
            time.sleep(0.1)
            if host in output("ip", "netns"):
                workers = output("ip", "netns", "pids", host).split()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode != 0
        assert not any(Path("/proc", worker).exists() for worker in workers)

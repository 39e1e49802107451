"""BYTEPS_TRACE_ON writes a Chrome trace of some steps of each worker and server."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from gluon_gc.launch.cli.tasks import service
from tests.mxnet.cluster.cluster import TIMEOUT, Cluster, last_line
from tests.mxnet.exchange.test_two_way import steps
from tests.processes import clean_environ

SHAPES = [[300, 200], [500]]
PARAMS = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
LAST = 3  # steps in all


def traced(folder, **variables_):
    """Run two workers and a server under bpslaunch --local; returns each one's event counts."""
    arguments = {
        "shapes": SHAPES,
        "steps": LAST,
        "compression_params": PARAMS,
        "optimizer_params": {"learning_rate": 0.1},
    }
    job = Cluster(folder, 2, 1).command("RANK", steps, arguments)
    done = subprocess.run(
        [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1", *job],
        env={
            **clean_environ(),
            "BYTEPS_TRACE_ON": "1",
            "BYTEPS_TRACE_DIR": str(folder),
            **variables_,
        },
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folders = ("worker0/0", "worker1/0", "server0")
    return [_names(folder / name / "comm.json") for name in folders]


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_trace_that_cannot_be_written_is_refused_before_training(role, cluster, tmp_path):
    (tmp_path / "file").touch()
    nodes = cluster(1, 1)
    traced = {"BYTEPS_TRACE_ON": 1, "BYTEPS_TRACE_DIR": tmp_path / "file"}
    if role == "server":
        nodes.start("server0", service("server"), **traced)
    else:
        nodes.start_roles()
        arguments = {"shapes": SHAPES, "steps": 1, "compression_params": PARAMS}
        nodes.start_worker(0, steps, {**arguments, "optimizer_params": {}}, **traced)
    assert nodes.wait(f"{role}0") != 0
    said = "BYTEPS_TRACE_ON is set, but BYTEPS_TRACE_DIR, "
    assert said in last_line(nodes.log(f"{role}0"))


def _names(path):
    events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["name"] for event in events if event["ph"] == "b")


@pytest.mark.parametrize(
    "first, last, steps",
    [(1, 1, [1]), (2, 3, [2, 3]), (3, 9, [3])],
    ids=["from the first step", "to the last step", "beyond the last step"],
)
def test_a_trace_has_the_operators_of_its_steps_and_of_no_others(tmp_path, first, last, steps):
    *workers, server = traced(
        tmp_path, BYTEPS_TRACE_START_STEP=str(first), BYTEPS_TRACE_END_STEP=str(last)
    )
    spans = {f"step {step}" for step in steps}
    for names in workers:
        assert {name for name in names if name.startswith("step ")} == spans
        for operator in ("compress", "decompress"):
            assert names[f"gluon_gc_{operator}"] == len(steps)  # all tensors are in one message
        assert names["KVStoreDistRowSparsePush"] > 0 and names["KVStoreDistRowSparsePull"] > 0
    assert server["gluon_gc_aggregate"] == len(steps)
    assert {name for name in server if name.startswith("step ")} <= spans

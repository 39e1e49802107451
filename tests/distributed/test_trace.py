"""BYTEPS_TRACE_ON: a Chrome trace of some steps of each worker."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from gluon_gc import variables
from tests.distributed.cluster import JOBS, TIMEOUT

SHAPES = [[300, 200], [500]]
PARAMS = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
LAST = 3  # steps that are trained


def traced(folder, **variables_):
    """Two workers under bpslaunch --local; the names of each one's events, and how often."""
    arguments = {
        "shapes": SHAPES,
        "steps": LAST,
        "compression_params": PARAMS,
        "optimizer_params": {"learning_rate": 0.1},
    }
    job = [sys.executable, str(JOBS), "steps", str(folder / "RANK.npz"), json.dumps(arguments)]
    known = {row.name for row in variables.TABLE}
    clean = {name: text for name, text in os.environ.items() if name not in known}
    done = subprocess.run(
        [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1", *job],
        env={**clean, "BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": str(folder), **variables_},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [_names(folder / f"worker{rank}" / "0" / "comm.json") for rank in (0, 1)]


def _names(path):
    events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["name"] for event in events if event["ph"] == "b")


@pytest.mark.parametrize(
    "first, last, steps",
    [(1, 1, [1]), (2, 3, [2, 3]), (3, 9, [3])],
    ids=["from the first step", "to the last step", "beyond the last step"],
)
def test_a_trace_has_the_operators_of_its_steps_and_of_no_others(tmp_path, first, last, steps):
    begin, end = str(first), str(last)
    for names in traced(tmp_path, BYTEPS_TRACE_START_STEP=begin, BYTEPS_TRACE_END_STEP=end):
        assert {name for name in names if name.startswith("step")} == {f"step {n}" for n in steps}
        for operator in ("compress", "decompress"):
            assert names[f"gluon_gc_onebit_{operator}"] == len(steps) * len(SHAPES)
        assert names["KVStoreDistRowSparsePush"] > 0 and names["KVStoreDistRowSparsePull"] > 0

"""Runs train.py on a cluster of this machine, and sums up what its logs say."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.log import read_log

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

Run = List[Dict[str, Any]]  # the records that train.py logs, one an epoch


class Cluster(NamedTuple):
    """Processes on this machine, beside a scheduler."""

    workers: int
    servers: int


def train(name: str, arguments: Sequence[str], seed: int, cluster: Cluster, output: Path) -> Run:
    """Run train.py on a cluster of this machine and return its log; exit if it fails.

    Parameters
    ----------
    name : str
        What to call these arguments.
    arguments : sequence of str
        Of train.py, beside the seed and the log, which is kept in the folder `output`.
    """
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"{name.replace(' ', '-')}-{seed}.jsonl"
    options = ["--local", "-n", str(cluster.workers), "-s", str(cluster.servers)]
    script = [
        str((HERE / "train.py").relative_to(ROOT)),
        *arguments,
        "--seed",
        str(seed),
        "--logging-file",
        os.path.relpath(log, ROOT),
    ]
    print(f"\n$ bpslaunch {' '.join(options)} python {' '.join(script)}", flush=True)
    command = [sys.executable, "-m", "bpslaunch", *options, sys.executable, *script]
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", **os.environ}  # MXNet's, about NumPy
    done = subprocess.run(command, cwd=ROOT, env=quiet, check=False)
    if done.returncode != 0:
        sys.exit(f"the {name} run with seed {seed} failed with exit code {done.returncode}")
    return read_log(str(log))


def summary(runs: Sequence[Run]) -> Dict[str, float]:
    """Return the means over runs of the last accuracy, of bytes a step, and of seconds."""

    def mean(value: Callable[[Run], float]) -> float:
        return sum(value(run) for run in runs) / len(runs)

    def steps(run: Run) -> int:
        return sum(len(record["step_loss"]) for record in run)

    return {
        "accuracy": mean(lambda run: run[-1]["validation_accuracy"]),
        "pushed": mean(lambda run: run[-1]["pushed_bytes"] / steps(run)),
        "pulled": mean(lambda run: run[-1]["pulled_bytes"] / steps(run)),
        "seconds": mean(lambda run: sum(record["seconds"] for record in run)),
    }

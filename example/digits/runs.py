"""Runs train.py on a cluster of this machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.log import read_log
from common.summary import Run, summary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
__all__ = ["ROOT", "Cluster", "Run", "summary", "train"]


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

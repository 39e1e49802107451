"""Runs train.py on a cluster on this machine."""

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
    """The numbers of workers and servers; there is one scheduler too."""

    workers: int
    servers: int


def train(name: str, arguments: Sequence[str], seed: int, cluster: Cluster, output: Path) -> Run:
    """Run train.py on a cluster on this machine and return its log; exit if it fails.

    Parameters
    ----------
    name : str
        The name of the setting.
    arguments : sequence of str
        Arguments of train.py, without --seed and --logging-file.
    seed : int
    cluster : Cluster
    output : Path
        The folder of the logs.
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
    # MXNet raises FutureWarnings about NumPy.
    quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=quiet, check=False)
    if done.returncode != 0:
        sys.exit(f"the {name} run with seed {seed} failed with exit code {done.returncode}")
    return read_log(str(log))

"""Runs digits.py under torchrun on this machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for example/common

from common.log import read_log
from common.summary import Run, summary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
__all__ = ["ROOT", "Run", "summary", "train"]


def train(name: str, arguments: Sequence[str], seed: int, workers: int, output: Path) -> Run:
    """Run digits.py on some workers and return its log; exit if it fails.

    Parameters
    ----------
    name : str
        The name of the setting.
    arguments : sequence of str
        Arguments of digits.py, without --seed and --logging-file.
    seed, workers : int
        The run's seed, and the number of workers.
    output : Path
        The folder of the logs.
    """
    output.mkdir(parents=True, exist_ok=True)
    log = output / f"{name.replace(' ', '-')}-{seed}.jsonl"
    options = ["--standalone", "--nproc-per-node", str(workers)]
    script = [
        str((HERE / "digits.py").relative_to(ROOT)),
        *arguments,
        "--seed",
        str(seed),
        "--logging-file",
        os.path.relpath(log, ROOT),
    ]
    print(f"\n$ torchrun {' '.join([*options, *script])}", flush=True)
    command = [sys.executable, "-m", "torch.distributed.run", *options, *script]
    environ = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun's default; it warns if it is unset
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
    if done.returncode != 0:
        sys.exit(f"the {name} run with seed {seed} failed with exit code {done.returncode}")
    return read_log(str(log))

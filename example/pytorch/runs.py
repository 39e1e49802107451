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
    """Run digits.py on so many workers and return its log; exit if it fails.

    Parameters
    ----------
    name : str
        What to call these arguments.
    arguments : sequence of str
        Of digits.py, beside the seed and the log, which is kept in the folder `output`.
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
    environ = {"OMP_NUM_THREADS": "1", **os.environ}  # as torchrun has it, which warns of it
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
    if done.returncode != 0:
        sys.exit(f"the {name} run with seed {seed} failed with exit code {done.returncode}")
    return read_log(str(log))

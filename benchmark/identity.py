"""Checks that two source trees train to bit-identical weights, for every compressor and engine.

Run it after a refactoring that must not change any number. Check the previous commit out into
another folder, and put its compiled library there:

    git worktree add /tmp/before HEAD~1
    cp gluon_gc/libgluon_gc.so /tmp/before/gluon_gc  # build it there if operators/ has changed
    python benchmark/identity.py /tmp/before

Both trees train 10 steps on known gradients: one process alone, 2 workers and a server, 2 workers
on Horovod, and 2 workers on torch.distributed. Each tree uses its own launcher, and starts each
engine once for all compressors. The exit code is 1 if a parameter differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gluon_gc.compression import registry  # noqa: E402
from tests.compressors import params_of  # noqa: E402
from tests.processes import clean_environ  # noqa: E402

WORKER = ROOT / "benchmark" / "identity_worker.py"
PYTHON, TORCH = sys.executable, str(ROOT / ".venv-torch" / "bin" / "python")
BPSLAUNCH = [PYTHON, "bpslaunch.py", "--local", "-n", "2"]
TORCHRUN = [TORCH, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WAYS = {
    "local": [PYTHON],
    "server": [*BPSLAUNCH, "-s", "1", PYTHON],
    "horovod": [*BPSLAUNCH, "--backend", "horovod", PYTHON],
    "torch": TORCHRUN,
}
SECONDS = 300  # for one engine in one tree
Settings = Dict[str, Dict[str, Any]]


def settings_of(compressors: list[str]) -> Settings:
    """Return compression_params by name: none, each compressor plain, and with feedback too."""
    settings: Settings = {"none": {}}
    for compressor in compressors:
        feedback = {} if registry[compressor].traits.accumulates else {"ef": "corrected"}
        for name, params in params_of(compressor).items():
            settings[name] = params
            settings[f"{name}, feedback"] = {**params, **feedback, "momentum": "nesterov"}
    return settings


def trained(tree: Path, way: str, settings: Settings) -> dict[str, np.ndarray]:
    """Train in a tree; return all workers' weights, keyed by "RANK/SETTING/PARAMETER"."""
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "BYTEPS_PARTITION_BYTES": "1000"}
    environ = {**clean_environ(), **own}
    environ.pop("GLUON_GC_LIBRARY", None)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "settings.json").write_text(json.dumps(settings))
        command = [*WAYS[way], str(WORKER), way, folder]
        done = subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            sys.exit(f"{way} in {tree} failed\n{done.stdout}{done.stderr}")
        files = sorted(Path(folder).glob("*.npz"))
        return {f"{f.stem}/{name}": array for f in files for name, array in np.load(f).items()}


def first_difference(setting: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return "equal", or the first parameter that differs and its worker."""
    for key in ours:
        rank, key_setting, parameter = key.split("/")
        if key_setting == setting and ours[key].tobytes() != theirs[key].tobytes():
            return f"{parameter} of worker {rank}"
    return "equal"


def main() -> None:
    """Train with both trees and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the root of the other tree")
    parser.add_argument("--compressors", nargs="+", choices=registry, default=list(registry))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    settings = settings_of(args.compressors)
    rows = {setting: [] for setting in settings}
    for way in args.ways:
        ours, theirs = (trained(tree.resolve(), way, settings) for tree in (ROOT, args.other))
        for setting, row in rows.items():
            row.append(first_difference(setting, ours, theirs))
    print(f"| compression | {' | '.join(args.ways)} |\n|{'---|' * (1 + len(args.ways))}")
    for setting, row in rows.items():
        print(f"| {setting} | {' | '.join(row)} |")
    sys.exit(any(cell != "equal" for row in rows.values() for cell in row))


if __name__ == "__main__":
    main()

"""Builds the fuzz harnesses and runs each for its share of some seconds: ``make fuzz SECONDS=60``.

With ``--keep``, a minimal set of the inputs found is added to the repository.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from . import harnesses, seeds

MOST_BYTES = 2048
"""The size limit of an input; short inputs are fast."""
_NO_CLANG = (
    "fuzzing needs clang++, its libFuzzer and its OpenMP "
    "(on Debian and Ubuntu: clang libclang-rt-dev libomp-dev; on older ones: clang libomp-dev)"
)
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: +(\d+)")
_INPUT = re.compile(r"Test unit written to (\S+)")


def fuzz(folder: Path, name: str, seconds: int) -> list[str]:
    """Run a harness, starting from the known inputs; returns the paths of inputs that fail."""
    inputs, crashes = _inputs(folder, name), folder / "crashes"
    crashes.mkdir(exist_ok=True)
    harnesses.unpack(name, inputs)
    for number, seed in enumerate(seeds.inputs(name)):
        (inputs / f"seed{number}").write_bytes(seed)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    options = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-print_final_stats=1"]
    options += ["-timeout=300", "-report_slow_units=300", f"-artifact_prefix={crashes}/{name}-"]
    done = subprocess.run(
        [folder / name, *options, inputs],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    executions = _EXECUTIONS.search(done.stderr)
    count = executions.group(1) if executions else "an unknown number of"
    print(f"   {count} executions in {took:.0f} s of processor time", flush=True)
    if done.returncode != 0:
        print(done.stderr[-8000:])
    return _INPUT.findall(done.stderr)


def keep(folder: Path, name: str) -> None:
    """Put the smallest set of inputs with the same coverage into the repository."""
    least = folder / "least" / name
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir(parents=True)
    command = [folder / name, "-merge=1", f"-max_len={MOST_BYTES}", least, _inputs(folder, name)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    harnesses.pack(name, least.iterdir())


def _inputs(folder: Path, name: str) -> Path:
    inputs = folder / "inputs" / name
    inputs.mkdir(parents=True, exist_ok=True)
    return inputs


def main() -> None:
    """Build and run all harnesses."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seconds", type=int, help="for all harnesses together")
    parser.add_argument("--folder", type=Path, default="build/fuzz", help="where to build them")
    parser.add_argument("--keep", action="store_true", help="add the inputs found to tests/fuzz")
    args = parser.parse_args()
    if shutil.which("clang++") is None:
        sys.exit(_NO_CLANG)
    print(f"== Building the fuzz harnesses in {args.folder} (minutes)", flush=True)
    harnesses.build(args.folder, "clang++")
    crashes, seconds = [], max(1, args.seconds // len(harnesses.NAMES))
    for name in harnesses.NAMES:
        print(f"== Fuzzing {name} for {seconds} s", flush=True)
        crashes += fuzz(args.folder, name, seconds)
        if args.keep:
            keep(args.folder, name)
    if crashes:
        sys.exit("\n".join(["== Inputs that fail, with their harness as prefix:", *crashes]))


if __name__ == "__main__":
    main()

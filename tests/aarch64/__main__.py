"""Tests the wheel for aarch64 in an emulated system: ``make test-aarch64``.

1. The library's results on BytePS's golden vectors (`bits`) and on the fuzzer's inputs equal those
   of this machine's library, which is for x86-64, bit for bit.
2. A worker on aarch64 and a worker on x86-64 train together.
3. The tests of the kernels and compressors pass. They compare all options and kernels with NumPy,
   bit for bit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gluon_gc import kernels
from tests.fuzz import harnesses, seeds
from tests.processes import free_port

from .system import COMPILER, ROOT, System, run

TESTS = ("compressors", "kernels/test_framing.py", "kernels/test_half.py", "kernels/test_isa.py")
TESTS += ("kernels/test_low_rank.py", "kernels/test_stream.py", "kernels/test_values.py")
TRAIN = ROOT / "tests" / "neutral" / "installation" / "train.py"
TIMEOUT = 1800


def compare(what: str, ours: str, theirs: str) -> None:
    """Exit unless both architectures printed the same lines."""
    lines = list(zip(ours.splitlines(), theirs.splitlines()))
    different = [f"x86-64: {a}\naarch64: {b}" for a, b in lines if a != b]
    if different or len(ours) != len(theirs):
        sys.exit("\n".join([f"{what}: other bits on aarch64 than on x86-64", *different[:9]]))
    print(f"   {what}: {len(lines)} lines are the same", flush=True)


def fuzz(system: System, folder: Path, library: Path) -> None:
    """Compare the results of each fuzz harness, on all inputs found so far and on some seeds."""
    for name in kernels.names():
        inputs = folder / "fuzz" / name
        shutil.rmtree(inputs, ignore_errors=True)
        inputs.mkdir(parents=True)
        harnesses.unpack(name, inputs)
        for number, seed in enumerate(list(seeds.inputs(name))[::16]):
            (inputs / f"seed{number}").write_bytes(seed)
        files = sorted(inputs.iterdir())
        ours = _harness("g++", name, kernels.PATH, folder / f"{name}.x86_64")
        theirs = _harness(COMPILER, name, library, folder / f"{name}.aarch64")
        compare(f"fuzz {name}", run(ours, *files), run(*system.command(theirs, *files)))


def _harness(compiler: str, name: str, library: Path, program: Path) -> Path:
    """Compile the harness of a compressor for a library."""
    sources = [ROOT / "tests" / "fuzz" / source for source in ("decoder.cpp", "replay.cpp")]
    options = ["-std=c++17", "-O1", f'-DCOMPRESSOR="{name}"', f"-I{ROOT / 'operators'}"]
    link = [library, f"-Wl,-rpath,{library.parent}"]
    run(compiler, *options, *sources, *link, "-o", program)
    return program


def train(system: System, folder: Path, environ: Any, python: Path) -> None:
    """Train with a worker on x86-64, whose Python is given, and a worker on aarch64."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": 2}
    job.update(LOCAL_WORLD_SIZE=2, OMP_NUM_THREADS=1)
    ours = {"PYTHONPATH": ROOT, "GLUON_GC_LIBRARY": kernels.PATH}
    commands = [([python, TRAIN], ours), (system.command(system.python, TRAIN), environ)]
    workers: list[subprocess.Popen] = []
    try:
        for rank, (words, variables) in enumerate(commands):
            added = {**job, **variables, "RANK": rank, "LOCAL_RANK": rank}
            full = {**os.environ, **{key: str(value) for key, value in added.items()}}
            command = [str(word) for word in words]
            workers.append(subprocess.Popen(command, cwd=folder, env=full))
        codes = [worker.wait(TIMEOUT) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(codes):
        sys.exit(f"the workers on x86-64 and aarch64 ended with exit codes {codes}")
    compare("weights", *((folder / f"rank{rank}").read_text() for rank in (0, 1)))


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.aarch64", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("python", type=Path, help="a Python for x86-64 with PyTorch")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "aarch64")
    args = parser.parse_args()
    folder = args.folder.resolve()
    print(f"== Making a system for aarch64 in {args.folder}", flush=True)
    system = System(folder)
    installed = system.install(args.wheel)
    library = installed / "gluon_gc" / "libgluon_gc.so"
    # The tests are a copy, because gluon_gc beside them would be found before the wheel's.
    shutil.rmtree(folder / "tests", ignore_errors=True)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    environ = system.environ()
    python = system.command(system.python)
    print("== Comparing the results of x86-64 and aarch64", flush=True)
    ours = run(sys.executable, "-m", "tests.aarch64.bits")
    compare("golden vectors", ours, run(*python, "-m", "tests.aarch64.bits", cwd=folder, **environ))
    fuzz(system, folder, library)
    print("== Training with a worker on x86-64 and a worker on aarch64", flush=True)
    train(system, folder, environ, args.python.absolute())
    print("== Running tests on aarch64 (minutes)", flush=True)
    pytest = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TIMEOUT}"]
    run(*pytest, *(f"tests/neutral/{name}" for name in TESTS), cwd=folder, shown=True, **environ)


if __name__ == "__main__":
    main()

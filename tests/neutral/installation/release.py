"""Installs files of a release in fresh environments, and trains and tests there: ``make release``.

PyTorch's environment runs it. The fresh environments use that environment's packages, except for
gluon_gc, which pip installs. The sdist is compiled, with the packages that pyproject.toml names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TRAIN = Path(__file__).with_name("train.py")
TESTS = ("tests/neutral/kernels", "tests/neutral/compressors")


def run(*words: object, cwd: Path) -> None:
    """Run a command without the variables that lead to this checkout; exit if it fails."""
    left_out = ("PYTHONPATH", "GLUON_GC_LIBRARY")
    environ = {name: text for name, text in os.environ.items() if name not in left_out}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environ)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of: {' '.join(map(str, words))}")


def environment(folder: Path, file: Path) -> Path:
    """Make an environment in which pip installs a file of the release; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--ignore-installed", "--no-deps", file, cwd=folder)
    return python


def train(python: Path, folder: Path) -> None:
    """Train with two workers, which must end with the same weights."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    run(*torchrun, TRAIN, cwd=folder)
    first, second = ((folder / f"rank{rank}").read_text() for rank in (0, 1))
    if first != second:
        sys.exit(f"two workers ended with different weights: {first}{second}")


def test(python: Path, folder: Path) -> None:
    """Run tests of the kernels, in a folder from which only the installed package is found."""
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("operators", "build"):  # the emulator's sources, and where it is built
        (folder / name).symlink_to(ROOT / name)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, cwd=folder)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            python = environment(folder / "environment", Path(name).resolve())
            train(python, folder)
            test(python, folder)

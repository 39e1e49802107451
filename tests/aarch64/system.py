"""A system for aarch64 in a folder: Debian's Python in QEMU's emulator of user programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Sequence

ROOT = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
DEBIAN = ("python3", "libgomp1", "libstdc++6")
PLATFORMS = [
    f"manylinux{version}_aarch64" for version in (2014, "_2_17", "_2_24", "_2_27", "_2_28")
]
REQUIREMENTS = ROOT / "requirements" / "aarch64.txt"


class System:
    """A folder with a root file system, and with packages of PyPI; it is made once.

    Parameters
    ----------
    folder : Path
        Where the system is, or is to be.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self._packages = folder / "root", folder / "packages"
        self._wheel = folder / "wheel"
        if not self.root.exists():
            _unpack_debian(folder / "apt", self.root)
        self.python = self.root / "usr" / "bin" / "python3"
        if not self._packages.exists():
            self._install(self._packages, "-r", REQUIREMENTS)

    def install(self, wheel: Path) -> Path:
        """Install gluon_gc's wheel, and return its folder."""
        shutil.rmtree(self._wheel, ignore_errors=True)
        self._install(self._wheel, wheel)
        return self._wheel

    def _install(self, folder: Path, *packages: object) -> None:
        """Install packages for aarch64 with this machine's pip."""
        version = self.python.resolve().name[len("python") :]
        unfinished = folder.with_name(folder.name + ".part")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-compile", "--only-binary=:all:", f"--target={unfinished}"]
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        run(*pip, *options, f"--python-version={version}", *platforms, *packages)
        unfinished.rename(folder)

    def command(self, *words: object) -> Sequence[object]:
        """Return the command that runs a program for aarch64."""
        return (EMULATOR, "-L", self.root, *words)

    def environ(self) -> dict[str, object]:
        """Return the variables of a Python for aarch64 that finds the packages."""
        paths = f"{self._wheel}{os.pathsep}{self._packages}"
        return {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": 1, "GLUON_GC_LIBRARY": ""}


def _unpack_debian(apt: Path, root: Path) -> None:
    """Download packages of this machine's Debian for aarch64, and unpack them without installing.

    Apt has its own lists and status in the folder `apt`, so this machine's are not changed.
    """
    lists, unfinished = apt / "lists", root.with_name("root.part")
    for folder in (lists / "partial", apt / "archives" / "partial", unfinished):
        folder.mkdir(parents=True, exist_ok=True)
    get = ["apt-get", "-qq", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures::=arm64"]
    get += ["-o", f"Dir::State::lists={lists}", "-o", "Dir::State::status=/dev/null"]
    get += ["-o", f"Dir::Cache={apt}", "-o", "Debug::NoLocking=1"]
    get += ["-o", "APT::Sandbox::User="]  # apt's own user may not be allowed to write here
    run(*get, "update")
    run(*get, "install", "--download-only", "--yes", "--no-install-recommends", *DEBIAN)
    for package in sorted((apt / "archives").glob("*.deb")):
        run("dpkg", "--extract", package, unfinished)
    unfinished.rename(root)


def run(*words: object, cwd: Path = ROOT, shown: bool = False, **variables: object) -> str:
    """Run a command with some more environment variables, and return its output, or show it.

    If the command fails, this process exits.
    """
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command, stdout = [str(word) for word in words], None if shown else subprocess.PIPE
    done = subprocess.run(command, cwd=cwd, env=environ, stdout=stdout, encoding="utf-8")
    if done.returncode != 0:
        output = (done.stdout or "")[-4000:]
        sys.exit(f"{output}\nexit code {done.returncode} of: {' '.join(command)[:400]}")
    return done.stdout or ""

"""The fuzz harnesses, one for each compressor and one for messages, and their inputs."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Iterable

from gluon_gc import kernels

HERE = Path(__file__).resolve().parent
MXNET = importlib.util.find_spec("mxnet")
NAMES = (*kernels.names(), *["messages"] * (MXNET is not None))


def build(folder: Path, compiler: str) -> None:
    """Build all harnesses in a folder, with sanitizers; with clang++ they are fuzzers."""
    options = [f"-DCMAKE_CXX_COMPILER={compiler}"]
    if MXNET is not None:
        options.append(f"-DMXNET_DIR={Path(MXNET.origin).parent}")
    cmake = [sys.executable, "-m", "cmake"]
    for command in (["-S", HERE, "-B", folder, *options], ["--build", folder, "--parallel", "2"]):
        subprocess.run([*cmake, *command], check=True, stdout=subprocess.DEVNULL)


def _archive(name: str) -> Path:
    return HERE / "corpus" / f"{name}.tar.xz"


def unpack(name: str, folder: Path) -> None:
    """Write the repository's inputs of a harness to a folder; a new harness has none."""
    if _archive(name).exists():
        with tarfile.open(_archive(name)) as inputs:
            inputs.extractall(folder)


def pack(name: str, inputs: Iterable[Path]) -> None:
    """Replace the repository's inputs of a harness."""
    with tarfile.open(_archive(name), "w:xz", preset=9) as archive:
        for data in sorted({file.read_bytes() for file in inputs}):
            # Without a time and an owner.
            member = tarfile.TarInfo(hashlib.sha256(data).hexdigest()[:16])
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

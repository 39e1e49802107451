"""The fuzz harnesses: one for each compressor, and one for messages; and the inputs of each."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Iterable, List

from gluon_gc import kernels

HERE = Path(__file__).resolve().parent
MXNET = importlib.util.find_spec("mxnet")
NAMES = (*kernels.names(), *["messages"] * (MXNET is not None))
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all inputs, so that the same ones are the same archive


def build(folder: Path, compiler: str) -> None:
    """Build all harnesses in a folder, with sanitizers: with clang++ they are fuzzers."""
    options = [f"-DCMAKE_CXX_COMPILER={compiler}"]
    if MXNET is not None:
        options.append(f"-DMXNET_DIR={Path(MXNET.origin).parent}")
    cmake = [sys.executable, "-m", "cmake"]
    for command in (["-S", HERE, "-B", folder, *options], ["--build", folder, "--parallel", "2"]):
        subprocess.run([*cmake, *command], check=True, stdout=subprocess.DEVNULL)


def _archive(name: str) -> Path:
    return HERE / "corpus" / f"{name}.zip"


def unpack(name: str, folder: Path) -> List[Path]:
    """Write the inputs of a harness that are in the repository to a folder; none if it is new."""
    if not _archive(name).exists():
        return []
    with zipfile.ZipFile(_archive(name)) as inputs:
        return [Path(inputs.extract(input, folder)) for input in inputs.namelist()]


def pack(name: str, inputs: Iterable[Path]) -> None:
    """Put inputs in the repository, in the place of those that are there."""
    all_bytes = {file.read_bytes() for file in inputs}
    with zipfile.ZipFile(_archive(name), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for data in sorted(all_bytes):
            called = hashlib.sha256(data).hexdigest()[:16]
            archive.writestr(zipfile.ZipInfo(called, _EPOCH), data, zipfile.ZIP_DEFLATED)

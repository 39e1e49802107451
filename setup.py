"""Builds libgluon_gc.so with CMake, into the package. pyproject.toml has all other settings."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Optional

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NVRTC = "nvidia-cuda-nvrtc-cu11"
ASKED = os.environ.get("GLUON_GC_WITH_CUDA", "")
"""Whether to compile kernels for GPUs: "1", "0", or "" to decide by the installed packages."""


def package(name: str) -> Optional[Path]:
    """The folder of an installed package, which is not imported. None if it is not installed."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # its parent package is not installed
        return None
    return Path(next(iter(found.submodule_search_locations))) if found else None


def runs_on_gpus() -> Optional[str]:
    """The name of an installed framework that runs on GPUs. None if there is none."""
    for distribution in importlib.metadata.distributions():
        if re.match("mxnet[-_]cu[0-9]", distribution.metadata["Name"] or ""):
            return distribution.metadata["Name"]
    torch = package("torch")
    version = torch / "version.py" if torch else ROOT / "none"
    if version.exists() and re.search(r"^cuda\b.*= '", version.read_text(), re.M):
        return "PyTorch for CUDA"
    return None


def with_cuda() -> bool:
    """Whether to compile the kernels for GPUs."""
    if ASKED:
        return ASKED != "0"
    user = runs_on_gpus()
    if user and not package("nvidia.cuda_nvrtc"):
        print(
            f"{user} is installed, but NVRTC, which compiles kernels for GPUs, is not: "
            f"pip install {NVRTC}"
        )
        return False
    return user is not None


class CMakeBuild(build_ext):
    """Compiles operators/. If MXNet is installed, this includes the operators for MXNet."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        mxnet = package("mxnet")
        if mxnet is None:
            print("MXNet is not installed: the library is built without operators for MXNet")
        build = Path(self.build_temp).resolve()
        prefix = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        self._cmake(
            "-S",
            ROOT / "operators",
            "-B",
            build,
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DMXNET_DIR={mxnet or ''}",
            f"-DGLUON_GC_WITH_CUDA={int(with_cuda())}",
            f"-DPYTHON={sys.executable}",
        )
        self._cmake("--build", build, "--parallel", len(os.sched_getaffinity(0)))
        self._cmake("--install", build, "--prefix", prefix)

    @staticmethod
    def _cmake(*arguments: object) -> None:
        subprocess.run([sys.executable, "-m", "cmake", *map(str, arguments)], check=True)


class AnyPythonWheel(bdist_wheel):
    """A wheel for all Python versions: the library does not use the C API of Python."""

    def get_tag(self) -> tuple:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    setup_requires=[NVRTC]
    if ASKED not in ("", "0")
    else [],  # pip builds in an isolated environment
    ext_modules=[Extension("gluon_gc.libgluon_gc", [])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": AnyPythonWheel},
)

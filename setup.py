"""Builds libgluon_gc.so with CMake and puts it inside the package; pyproject.toml has the rest."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Compiles operators/ against the MXNet that is installed."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        mxnet = importlib.util.find_spec("mxnet")  # found, not imported
        if mxnet is None:
            raise SystemExit("setup.py: mxnet 1.9.1 must be installed to build gluon_gc")
        build = Path(self.build_temp).resolve()
        prefix = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        self._cmake(
            "-S",
            ROOT / "operators",
            "-B",
            build,
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DMXNET_DIR={Path(mxnet.origin).parent}",
            f"-DGLUON_GC_WITH_CUDA={os.environ.get('GLUON_GC_WITH_CUDA', '')}",
            f"-DPYTHON={sys.executable}",
        )
        self._cmake("--build", build, "--parallel")
        self._cmake("--install", build, "--prefix", prefix)

    @staticmethod
    def _cmake(*arguments: object) -> None:
        subprocess.run([sys.executable, "-m", "cmake", *map(str, arguments)], check=True)


class AnyPythonWheel(bdist_wheel):
    """A wheel for any Python: ctypes and MXNet load the library, which has nothing of CPython's."""

    def get_tag(self) -> tuple:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    ext_modules=[Extension("gluon_gc.libgluon_gc", [])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": AnyPythonWheel},
)

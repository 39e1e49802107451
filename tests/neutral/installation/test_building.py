"""setup.py's options for CMake, depending on installed packages and the environment."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import clean_environ

ROOT = Path(__file__).resolve().parents[3]
MXNET = {"mxnet_cu112-1.9.1.dist-info/METADATA": "Name: mxnet-cu112\nVersion: 1.9.1\n"}
TORCH = {"torch/__init__.py": "", "torch/version.py": "cuda: Optional[str] = '12.4'\n"}
CPU_TORCH = {"torch/__init__.py": "", "torch/version.py": "cuda: Optional[str] = None\n"}
NVRTC = {"nvidia/cuda_nvrtc/__init__.py": ""}
MISSING = (
    "mxnet-cu112 is installed, but NVRTC, which compiles kernels for GPUs, is not: "
    "pip install nvidia-cuda-nvrtc-cu11"
)


@pytest.mark.parametrize(
    "asked, installed, built",
    [
        (None, {}, "0"),
        (None, NVRTC, "0"),
        (None, {**MXNET, **NVRTC}, "1"),
        (None, {**TORCH, **NVRTC}, "1"),
        (None, {**CPU_TORCH, **NVRTC}, "0"),
        (None, MXNET, "0"),
        ("0", {**MXNET, **NVRTC}, "0"),
        ("1", NVRTC, "1"),
    ],
)
def test_kernels_for_gpus_are_built_where_something_runs_on_gpus(tmp_path, asked, installed, built):
    cmake = {"cmake.py": "import sys; print(*sys.argv)", "nvidia/__init__.py": ""}
    for name, text in {**cmake, **installed}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ = {**clean_environ(), "PYTHONPATH": str(tmp_path)}
    if asked is not None:
        environ["GLUON_GC_WITH_CUDA"] = asked
    folders = ["--build-temp", tmp_path / "temporary", "--build-lib", tmp_path / "library"]
    command = [sys.executable, "setup.py", "build_ext", *folders]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert f"-DGLUON_GC_WITH_CUDA={built} " in done.stdout
    assert (MISSING in done.stdout) == (installed == MXNET)


WITHOUT_MXNET = """
import runpy, sys
sys.modules["mxnet"] = None
runpy.run_path("setup.py", run_name="__main__")
"""


def test_without_mxnet_its_operators_are_left_out(tmp_path):
    (tmp_path / "cmake.py").write_text("import sys; print(*sys.argv)")
    folders = ["--build-temp", tmp_path / "temporary", "--build-lib", tmp_path / "library"]
    command = [sys.executable, "-c", WITHOUT_MXNET, "build_ext", *folders]
    environ = {**clean_environ(), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "MXNet is not installed" in done.stdout and "-DMXNET_DIR= " in done.stdout


def test_a_processor_without_kernels_is_refused_by_name(tmp_path):
    sources = ["-S", ROOT / "operators", "-B", tmp_path]
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64"]
    command = [sys.executable, "-m", "cmake", *sources, *system]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode != 0
    assert "gluon_gc runs on x86_64 and aarch64, not on riscv64" in done.stderr


@pytest.mark.parametrize("asked, fetched", [("", []), ("0", []), ("1", ["nvidia-cuda-nvrtc-cu11"])])
def test_pip_fetches_what_compiles_kernels_for_gpus_where_they_are_asked_for(asked, fetched):
    code = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
    environ = {**clean_environ(), "GLUON_GC_WITH_CUDA": asked}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == str(fetched), done.stderr

"""The kernels compile for every GPU, spill no registers, and round as on the CPU."""

import importlib.util
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from gluon_gc.env import cores

from . import emulator

_spec = importlib.util.spec_from_file_location("compile", emulator.OPERATORS / "cuda/compile.py")
compiling = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compiling)

EM_CUDA = 190
MOST_REGISTERS = 64  # allows four blocks of 256 threads per multiprocessor
NVCC_CAPABILITY = 90  # every nvcc from 11.8 to 13 supports it

_took = re.compile(r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                   r"(\d+) bytes spill loads.*?Used (\d+) registers", re.S)  # fmt: skip


def check_log(log, source):
    """Check the assembler's log: all kernels, no spills, no stack frames, few registers."""
    took = {name: [int(number) for number in rest] for name, *rest in _took.findall(log)}
    assert took.keys() == set(emulator.kernels_of(source))
    for name, (stack, stores, loads, registers) in took.items():
        assert stack == stores == loads == 0, f"{name} spills"
        assert registers <= MOST_REGISTERS, f"{name} takes {registers} registers"


@pytest.mark.skipif(compiling.library() is None, reason="nvidia-cuda-nvrtc-cu11 is not installed")
@pytest.mark.parametrize("name", emulator.SOURCES)
def test_nvrtc_compiles_for_the_oldest_and_the_newest_gpus(name):
    source, nvrtc = emulator.SOURCES[name], compiling.library()
    oldest, *_, newest, ptx = compiling.images_of(source)
    images = oldest, newest, ptx
    with ThreadPoolExecutor(cores()) as pool:
        results = list(pool.map(lambda image: compiling.compile_image(nvrtc, image), images))
    for image, (code, log) in zip(images, results):
        if image.ptx:
            assert f".target sm_{image.capability}".encode() in code
            assert not re.search(rb"\bfma\b", code), "a product and a sum are one operation"
            assert not re.search(rb"\.(ftz|approx)\b", code), "an operation is not IEEE's"
        else:
            assert code[:4] == b"\x7fELF" and code[18] == EM_CUDA
            check_log(log, source)
        for kernel in emulator.kernels_of(source):
            assert kernel.encode() in code


@pytest.mark.skipif(compiling.library() is None, reason="nvidia-cuda-nvrtc-cu11 is not installed")
def test_what_the_compiler_refuses_is_said(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text("__global__ void wrong() { nothing(); }")
    with pytest.raises(RuntimeError, match=r'wrong_75.cubin: (.|\n)*"nothing" is undefined'):
        compiling.compile_image(compiling.library(), compiling.Image(source, 75))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
@pytest.mark.parametrize("name", emulator.SOURCES)
def test_nvcc_compiles_the_same_source_without_spills(tmp_path, name):
    options = ["-std=c++17", "-fmad=false", "--expt-relaxed-constexpr", f"-I{emulator.OPERATORS}"]
    command = [
        "nvcc",
        *options,
        f"-arch=sm_{NVCC_CAPABILITY}",
        "-Xptxas",
        "-v",
        "-Werror",
        "all-warnings",
    ]
    source = emulator.SOURCES[name]
    done = subprocess.run(
        [*command, "-cubin", "-o", tmp_path / "cubin", source],
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    check_log(done.stderr, source)

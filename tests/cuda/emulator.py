"""Builds the emulator: a libcuda.so.1 of our own, and modules of the kernel sources."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OPERATORS = HERE.parents[1] / "operators"
BUILD = HERE.parents[1] / "build" / "emulator"
RUNS = platform.machine() == "x86_64"
"""Whether this machine can run it: emulator.cpp switches between fibers in assembly of x86-64."""
SOURCES = {path.stem: path for path in sorted(OPERATORS.glob("cuda/**/*.cu"))}
FOLDER = OPERATORS / "cuda" / "compressors"
COMPRESSORS = tuple(name for name, path in SOURCES.items() if FOLDER in path.parents)
"""The compressors that have CUDA kernels."""

DRIVER = "libcuda.so.1"
DRIVER_SOURCES = [HERE / name for name in ("emulator.cpp", "driver.cpp", "memory.cpp")]
COMPILE = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-ffp-contract=off"]
# Misaligned values are undefined too.
TRAPS = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]

_kernel = re.compile(r"^GLUON_GC_KERNEL (\w+)\(", re.M)
_images = []  # the library keeps pointers into these


def kernels_of(source: Path) -> list:
    """Return the names of a source's kernels."""
    return _kernel.findall(source.read_text())


def compile_module(source: Path, folder: Path, operators: Path = OPERATORS) -> Path:
    """Compile a kernel source to a module of the emulator; `operators` has the headers."""
    main, module = folder / f"{source.stem}.cpp", folder / f"{source.stem}.so"
    lines = ['#include "emulator.h"', f'#include "{source}"']
    lines += [f"EMULATED({name})" for name in kernels_of(source)]
    main.write_text("\n".join(lines) + "\n")
    flags = [*TRAPS, "-Wno-unknown-pragmas", f"-I{HERE}", f"-I{operators}"]
    subprocess.run([*COMPILE, *flags, "-o", module, main], check=True)
    return module


def compile_driver(folder: Path) -> Path:
    """Compile the emulated libcuda.so.1."""
    driver = folder / DRIVER
    flags = [f"-Wl,-soname,{DRIVER}", "-ldl"]
    subprocess.run([*COMPILE, "-o", driver, *DRIVER_SOURCES, *flags], check=True)
    return driver


def use(driver: Path) -> Any:
    """Load the emulated driver, which the process uses from then on; returns its functions."""
    return ctypes.CDLL(str(driver), mode=ctypes.RTLD_GLOBAL)


def _digest() -> str:
    """Return a hash of all files that `build` compiles, and of its options."""
    digest = hashlib.sha256(repr([COMPILE, TRAPS]).encode())
    headers = (*OPERATORS.rglob("*.h"), *OPERATORS.rglob("*.cuh"), *HERE.glob("*.h"))
    for path in sorted((*headers, *SOURCES.values(), *DRIVER_SOURCES)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=None)
def build() -> Path:
    """Return a folder with the emulated driver and the modules of all kernel sources.

    One process compiles them for all processes and for later runs.
    """
    folder = BUILD / _digest()
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(f"{folder}.part")
            unfinished.mkdir(exist_ok=True)
            _compile(unfinished)
            unfinished.rename(folder)
    return folder


def _compile(folder: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(compile_driver, folder)]
        futures += [pool.submit(compile_module, source, folder) for source in SOURCES.values()]
    for one in futures:
        one.result()


@functools.lru_cache(maxsize=None)
def start() -> Any:
    """Run this process's codecs in the emulator; returns the emulated driver's functions."""
    return load(build())


def load(folder: Path) -> Any:
    """Do the same with the folder of `build`, which another process may have made."""
    functions = use(folder / DRIVER)
    for name in SOURCES:
        give(folder / f"{name}.so")
    return functions


def give(module: Path) -> None:
    """Give the library a source's kernels from a module."""
    from gluon_gc import kernels  # not needed to build modules
    from gluon_gc.kernels.library import check

    image = ctypes.create_string_buffer(module.read_bytes())
    _images.append(image)
    check(kernels.library.gluon_gc_cuda_code(module.stem.encode(), image))

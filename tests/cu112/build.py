"""Builds the test bed: stubs of the NVIDIA libraries that mxnet-cu112 links, and gluon_gc.

    python -m tests.cu112.build FOLDER

FOLDER gets a stub for each NVIDIA library that the installed wheel links, and libgluon_gc.so, whose
kernels are modules of the emulator in tests/cuda.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cuda import emulator
from tests.cuda.test_compile import compiling

HERE = Path(__file__).resolve().parent
OWN = {"libcuda.so.1": emulator.DRIVER_SOURCES, "libcudart.so.11.0": [HERE / "runtime.cpp"]}
"""The sources of libraries; all other functions do nothing and return 0, which means success."""
UNVERSIONED = {"nccl": "libnccl.so.2", "cu": "libcuda.so.1"}
"""The libraries whose functions have no symbol version, by the prefix of the functions' names."""
EMULATED_CAPABILITY = 75

_function = re.compile(r"(\w+)(?:@(lib\S+))?$")


def run(*command: Any) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def linked(libmxnet: Path) -> dict[str, list[str]]:
    """Return the functions of NVIDIA's libraries that MXNet links, by library."""
    functions = defaultdict(list)
    for line in run("nm", "-D", "--undefined-only", "--format=posix", libmxnet).splitlines():
        found = _function.match(line.split()[0])
        if found is None:
            continue
        name, library = found.groups()
        begins = (
            unversioned for prefix, unversioned in UNVERSIONED.items() if name.startswith(prefix)
        )
        library = library or next(begins, None)
        if library is not None:
            functions[library].append(name)
    return functions


def compile_library(name: str, functions: list[str], folder: Path) -> None:
    """Compile the stub of a library, with its own sources if there are any."""
    source, versions = folder / f"{name}.cpp", folder / f"{name}.map"
    lines = [f"[[gnu::weak]] long {function}() {{ return 0; }}" for function in functions]
    source.write_text("\n".join(['extern "C" {', *lines, "}\n"]))
    version = "" if name in UNVERSIONED.values() else name
    versions.write_text(f"{version} {{ global: *; }};\n")
    sources = [source, *OWN.get(name, [])]
    if name in OWN and name != emulator.DRIVER:
        sources.append(folder / emulator.DRIVER)
    flags = [f"-I{emulator.HERE}", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}"]
    run(*emulator.COMPILE, "-o", folder / name, *sources, *flags, "-ldl")


def compile_images(folder: Path) -> Path:
    """Return a C++ file that embeds the modules of all compressors as machine code."""
    images = [compiling.Image(source, EMULATED_CAPABILITY) for source in emulator.SOURCES.values()]

    def compile_image(image: Any) -> None:
        emulator.compile_module(image.source, folder).rename(folder / image.file)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_image, images))
    source = folder / "images.cpp"
    source.write_text(compiling.table(images, folder))
    return source


def main(folder: Path) -> None:
    mxnet = Path(importlib.util.find_spec("mxnet").origin).parent
    folder.mkdir(parents=True, exist_ok=True)
    functions = linked(mxnet / "libmxnet.so")
    compile_library(emulator.DRIVER, functions.pop(emulator.DRIVER), folder)
    for name in functions:
        compile_library(name, functions[name], folder)
    cmake = (sys.executable, "-m", "cmake")
    build = folder / "gluon_gc"
    options = {"MXNET_DIR": mxnet, "GLUON_GC_IMAGES": compile_images(folder)}
    defined = (f"-D{option}={value}" for option, value in options.items())
    run(*cmake, "-S", emulator.OPERATORS, "-B", build, *defined)
    run(*cmake, "--build", build, "--parallel", str(len(os.sched_getaffinity(0))))
    run(*cmake, "--install", build, "--prefix", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

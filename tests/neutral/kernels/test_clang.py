"""The sources compile with clang; all other tests build them with gcc."""

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gluon_gc.env import cores

MXNET = importlib.util.find_spec("mxnet")
OPERATORS = Path(__file__).resolve().parents[3] / "operators"


def cmake_commands(folder):
    """Return CMake's clang++ commands for each source and instruction set."""
    options = ["-DCMAKE_CXX_COMPILER=clang++"]
    if MXNET is not None:
        options.append(f"-DMXNET_DIR={Path(MXNET.origin).parent}")
    configure = [sys.executable, "-m", "cmake", "-S", OPERATORS, "-B", folder, *options]
    command = [*configure, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    if "Could NOT find OpenMP_CXX" in done.stderr:
        pytest.skip("clang++ has no OpenMP here: libomp-dev is not installed")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "compile_commands.json").read_text())


def complaints(command):
    """Return clang's errors and warnings for a source, without generating code."""
    words = [*shlex.split(command["command"]), "-fsyntax-only"]
    done = subprocess.run(words, cwd=command["directory"], capture_output=True, encoding="utf-8")
    return done.stderr


@pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed")
@pytest.mark.timeout(300)
def test_every_source_compiles_with_clang_without_a_warning(tmp_path):
    commands = cmake_commands(tmp_path)
    sources = {Path(command["file"]) for command in commands}
    folders = ["core", "cuda", *["mxnet"] * (MXNET is not None)]
    assert sources >= {path for folder in folders for path in OPERATORS.glob(f"{folder}/**/*.cpp")}
    with ThreadPoolExecutor(cores()) as pool:
        assert "".join(pool.map(complaints, commands)) == ""

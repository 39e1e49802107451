"""The compressor of docs/adding-a-compressor.md fits the code as it is."""

import shutil
import subprocess
from pathlib import Path

import mxnet
import pytest

from tests.test_docs import ROOT, Page


@pytest.mark.skipif(not (shutil.which("git") and shutil.which("g++")), reason="needs git and g++")
def test_its_patch_applies_and_its_kernels_and_operators_compile(tmp_path):
    for folder in ("operators", "gluon_gc", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so"))
    page = Page(ROOT / "docs" / "adding-a-compressor.md")
    files = {file: code for _, code, file in page.blocks if file}
    for file, code in files.items():
        (tmp_path / file).write_text(code)
    (patch,) = page.code("diff")
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    sources = [file for file in files if file.endswith(".cpp")] + ["operators/core/capi.cpp"]
    assert len(sources) == 3
    include = Path(mxnet.__file__).parent / "include"
    for source in sources:
        options = ["-std=c++17", "-DGLUON_GC_ISA=scalar", "-Ioperators", "-isystem", include]
        command = ["g++", "-c", "-O0", "-o", "compiled.o", *options, source]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)

"""The algorithm of docs/design/adding-an-algorithm.md needs two new files and no edits."""

import os
import shutil
import subprocess
import sys

from tests.docs.test_docs import ROOT, Page

NAME = "elastic"
FILES = {f"gluon_gc/algorithms/{NAME}.py", f"tests/neutral/algorithms/test_{NAME}.py"}


def copy_with_the_algorithm(tree):
    """Copy the Python files, the built library and the page's files to an empty folder."""
    for folder in ("gluon_gc", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    page = Page(ROOT / "docs/design/adding-an-algorithm.md")
    files = {file: code for _, code, file in page.blocks if file}
    assert files.keys() == FILES
    for file, code in files.items():
        assert not (tree / file).exists()
        (tree / file).write_text(code)


def test_the_shared_tests_find_it_and_its_own_pass(tmp_path):
    copy_with_the_algorithm(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    folder = "tests/neutral/algorithms"
    tests = (f"{folder}/test_algorithms.py", f"{folder}/test_{NAME}.py")
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--noconftest"]
    done = subprocess.run(
        [*words, *tests], cwd=tmp_path, env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"help[{NAME}] PASSED" in done.stdout
    assert f"test_{NAME}.py::test_{NAME}_is_its_replay_bit_for_bit PASSED" in done.stdout

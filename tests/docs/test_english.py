"""Sentences of docs, docstrings and comments that are hard to read may only become fewer."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.english import problems

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".h", ".cpp", ".cu", ".cuh"}

BUDGET = {}
"""How often each kind of problem occurs. Lower a number when you mend sentences."""


def sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8")
    if listed.returncode:
        pytest.skip("the tree is no clone of git, which lists its files")
    return [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in SUFFIXES]


def test_hard_sentences_do_not_become_more():
    found = [(kind, path, text) for path in sources() for kind, text in problems(path)]
    counts = Counter(kind for kind, _, _ in found)
    over = {kind for kind, count in counts.items() if count > BUDGET.get(kind, 0)}
    assert not [f"{path}: {kind}: {text}" for kind, path, text in found if kind in over]


@pytest.mark.parametrize(
    "suffix, text, kind",
    [
        (".md", "A sentence " + "with words " * 20 + "ends.", "over 40 words"),
        (".md", "| a cell | for whom it is |", "for whom"),
        (".py", '"""A docstring, of which there are two."""', "of which"),
        (".py", "x = 1  # so many", "so many"),
        (".py", "# A comment that\n# is alike\n", "alike"),
        (".h", "int x;  // what is sent", "what is"),
        (".h", "/* A function\n   of which there are two. */\nint f();", "of which"),
    ],
)
def test_a_hard_sentence_is_found(tmp_path, suffix, text, kind):
    path = tmp_path / f"file{suffix}"
    path.write_text(text)
    assert [found for found, _ in problems(path)] == [kind]


@pytest.mark.parametrize(
    "suffix, text",
    [
        (".md", "```sh\necho what is sent\n```"),
        (".md", "- An item " + "of words " * 15 + "\n- another " + "of words " * 15),
        (".py", 'x = "what is sent"'),
        (".h", 'const char* x = "// what is sent";'),
    ],
)
def test_code_is_no_prose(tmp_path, suffix, text):
    path = tmp_path / f"file{suffix}"
    path.write_text(text)
    assert not list(problems(path))

"""The docs say what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "example" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_reference_is_what_the_code_makes_it():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page(), "run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_docs_compiles(page):
    for number, code in enumerate(
        re.findall(r"^( *)```python\n(.*?)```", page.read_text(), re.S | re.M)
    ):
        indent, source = code
        lines = [line[len(indent) :] for line in source.splitlines()]
        compile("\n".join(lines), f"{page.name}[{number}]", "exec")

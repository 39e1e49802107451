"""`make docs` makes a page of each public module, with all names that it has."""

import html
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT

(MODULES,) = re.findall(r"^API := (.*)$", (ROOT / "Makefile").read_text(), re.M)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of the pages."""
    folder, venv = tmp_path_factory.mktemp("pages"), Path(sys.prefix)
    make = ["make", "-o", venv / ".built", f"VENV={venv}", f"API_PAGES={folder}", "docs"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("module", MODULES.split())
def test_a_page_has_each_public_name_with_what_it_is(pages, module):
    text = (pages / f"{module.replace('.', '/')}.html").read_text()
    prose = html.unescape(re.sub(r"<[^>]+>", "", text))
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if callable(value):
            assert f'id="{name}"' in text
            summary = inspect.getdoc(value).partition("\n")[0]
            assert summary.replace("`", "").partition("*")[0] in prose


def test_parameters_are_a_list(pages):
    assert "<li><strong>compression_params</strong>" in (pages / "gluon_gc.html").read_text()

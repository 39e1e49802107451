"""`make docs` builds the site of the documentation, with all public names and a search."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_gc
from tests.docs.test_docs import ROOT, public_names


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    folder, venv = tmp_path_factory.mktemp("site"), Path(sys.prefix)
    make = ["make", "-o", venv / ".installed", f"VENV={venv}", f"SITE={folder}", "docs"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(
    "page, public",
    [
        ("api-mxnet", [name for name in gluon_gc.__all__ if name != "__version__"]),
        ("api-pytorch", public_names("gluon_gc/torch")),
        ("api-compressors", public_names("gluon_gc/compression")),
        ("api-compressors", public_names("gluon_gc/kernels")),
    ],
)
def test_a_page_has_each_public_name(site, page, public):
    text = (site / "reference" / page / "index.html").read_text()
    headings = set(re.findall(r'<h[23] id="[\w.]+\.(\w+)"', text))
    assert set(public) - headings <= {"PATH", "library"}  # a value, and the name of a module too


def test_the_adapters_of_tools_have_entries(site):
    text = (site / "reference" / "api-pytorch" / "index.html").read_text()
    names = (
        "accelerate.compress",
        "lightning.CompressionCallback",
        "transformers.CompressionCallback",
    )
    assert [n for n in names if f'id="gluon_gc.torch.integrations.{n}"' not in text] == []


def test_parameters_stand_in_a_table_with_their_types(site):
    text = html.unescape((site / "reference" / "api-mxnet" / "index.html").read_text())
    assert re.search(r"<code>compression_params</code>\s*</td>\s*<td>\s*<code>", text)


def test_the_search_finds_each_page(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.relative_to(site).parent.as_posix() for path in site.rglob("index.html")}
    assert {page.strip("./") for page in pages} == {place.strip("/") for place in found}

"""The tables of docs/design/architecture.md list every module of gluon_gc."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gluon_gc"
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
MODULES = {
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
}
FILES = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for folder in ("benchmark", "docs", "example", "gluon_gc", "operators", "tests")
    for path in (ROOT / folder).rglob("*.*")
]


def tables(text):
    """Yield the folder of each section that lists modules, and the names in its first column.

    The first table is that of the layers. Others have their folder in the heading. A name without a
    folder is in the folder of the name before it in the same cell.
    """
    for section in re.split(r"^#{2,3} ", text, flags=re.M):
        heading = section.partition("\n")[0]
        named = re.search(r"`gluon_gc/(\w+)`", heading)
        if not named and heading != "Layers":
            continue
        folder = f"{named[1]}/" if named else ""
        names = []
        for cell in re.findall(r"^\| (.*?) \|", section, flags=re.M):
            inner = ""
            for name in re.findall(r"`([\w./]+)`", cell):
                name = name[len("gluon_gc/") :] if name.startswith("gluon_gc/") else name
                if "/" not in name:
                    name = inner + name
                inner = name[: name.rfind("/") + 1]
                names.append(folder + name)
        yield folder, [name for name in names if not name.startswith("operators")]


def problems(text, modules):
    """Yield the modules that no table lists, and the names in tables that are no modules."""
    found = dict(tables(text))
    detailed = tuple(folder for folder in found if folder)
    listed = set()
    for folder, names in found.items():
        for name in names:
            own = {m for m in modules if m == name or m.startswith(f"{name}/")}
            if not own:
                yield f"{name} is listed, and does not exist"
            listed |= {m for m in own if folder or not m.startswith(detailed)}
    yield from (f"{name} is not listed" for name in sorted(modules - listed))


def unknown_files(text):
    """Yield the Python files that a page names and that the repository does not have."""
    prose = re.sub(r"(?:^`[\w./]+`:\n\n)?^( *)```.*?^ *```$", "", text, flags=re.S | re.M)
    for name in re.findall(r"`([\w./]+\.py)`", prose):
        if not any(path.endswith(f"/{name}") for path in FILES):
            yield name


def test_the_tables_list_every_module():
    text = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    assert list(problems(text, MODULES)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_of_the_design_names_files_that_exist(page):
    assert list(unknown_files(page.read_text(encoding="utf-8"))) == []


TEXT = """
## Layers
| `gluon_gc/env` | |
| `gluon_gc/log.py`, `version.py` | |
| `gluon_gc/torch` | |
### PyTorch: `gluon_gc/torch`
| `fsdp/gather.py`, `scatter.py` | |
| `state` | |
"""
LISTED = {"env/a.py", "log.py", "version.py", "torch/fsdp/gather.py", "torch/fsdp/scatter.py"}
LISTED |= {"torch/state/a.py", "torch/state/b.py"}


@pytest.mark.parametrize(
    "modules, expected",
    [
        (LISTED, []),
        (LISTED | {"torch/ddp.py"}, ["torch/ddp.py is not listed"]),
        (LISTED | {"options.py"}, ["options.py is not listed"]),
        (
            LISTED - {"torch/fsdp/scatter.py"},
            ["torch/fsdp/scatter.py is listed, and does not exist"],
        ),
    ],
)
def test_problems_are_found(modules, expected):
    assert list(problems(TEXT, modules)) == expected


def test_a_file_that_does_not_exist_is_found():
    assert list(unknown_files("`no_such_file.py`, `exchange/plan.py` and `plan.py`")) == [
        "no_such_file.py"
    ]

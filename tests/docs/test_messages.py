"""docs/reference/troubleshooting.md has what the code says, and all that it says."""

import ast
import re

import pytest

from tests.docs.test_docs import ROOT

PAGE = ROOT / "docs" / "reference" / "troubleshooting.md"
OF_PYTHON = [
    ROOT / "setup.py",
    *sorted(ROOT.glob("gluon_gc/**/*.py")),
]
FOR_USERS = [path for path in OF_PYTHON if path.parent.name != "kernels"]
OF_THE_LIBRARY = sorted(p for p in ROOT.glob("operators/**/*.[ch]*") if p.suffix != ".pyc")
CARRIER = re.compile(r"(\w+: )?(\.\.\.)?|\W*")  # of a message that is made elsewhere
# They take a message.
ENDS = {"die", "fail", "fail_soon", "_fail", "say", "_say", "warn", "warning"}


def template(node):
    """Return a string, or an f-string with "..." for its values; None for any other node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub("%[sd]", "...", node.value)
    if isinstance(node, ast.JoinedStr):
        whole = "".join(template(part) or "..." for part in node.values)
        return re.sub(r"(\.\.\.)+", "...", whole)
    return None


def strings():
    """All strings of the sources, as templates."""
    for path in OF_PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            yield template(node) or ""
    for path in OF_THE_LIBRARY:
        for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text()):
            text = re.sub(r"%[.*\w]+", "...", text)
            yield from (text, f"{text}...", f"...{text}...")


def messages(source):
    """What a file raises, warns of, logs or ends with, as templates."""
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if isinstance(node, ast.Raise) or name in ENDS:
            texts = [template(argument) for argument in call.args]
            yield from (text for text in texts if text and not CARRIER.fullmatch(text))


def pattern(quoted):
    return re.compile(".*".join(map(re.escape, quoted.split("..."))), re.S)


QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.M)


def test_each_row_says_what_to_do():
    rows = re.findall(r"^\| `.*$", PAGE.read_text(), re.M)
    assert len(rows) == len(QUOTED) == len(set(QUOTED))
    assert not [row for row in rows if not re.fullmatch(r"\| `[^`]+` \| [A-Z].*\. \|", row)]


def test_each_quoted_message_is_in_the_sources():
    known = set(strings())
    assert not [quoted for quoted in QUOTED if not any(map(pattern(quoted).fullmatch, known))]


@pytest.mark.parametrize("path", FOR_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_message_of_a_file_is_quoted(path):
    patterns = [pattern(quoted) for quoted in QUOTED]
    said = messages(path.read_text())
    assert not [text for text in said if not any(p.fullmatch(text) for p in patterns)]


def test_a_message_that_is_new_is_found():
    source = 'if x:\n    raise ValueError(f"{name} is quite new, got {x!r}")\n_say("also this")'
    assert sorted(messages(source)) == ["... is quite new, got ...", "also this"]
    assert not [p for p in map(pattern, QUOTED) if p.fullmatch("... is quite new, got ...")]

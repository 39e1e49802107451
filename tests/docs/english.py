"""Finds sentences that are hard to read: `python -m tests.docs.english FILE...` lists them."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

LONGEST = 40  # words of a sentence
PHRASES = ("of which", "of whom", "for whom", "alike", "so many", "in the place of", "what is")

ITEM = re.compile(
    r"\s*([-*•] |\d+\. |[\w*., ]+ : |\w+ = |(Parameters|Returns|Raises|Attributes)$|[-=]{3,}$)"
)


def paragraphs(text):
    """The paragraphs of a text; each list item, heading, formula and described parameter is one."""
    found = [[]]
    for line in text.splitlines():
        if not line.strip() or ITEM.match(line) or line.startswith("#"):
            found.append([])
        found[-1].append(line.strip())
    return [" ".join(lines) for lines in found if any(lines)]


def sentences(text):
    for paragraph in paragraphs(text):
        plain = re.sub(r"``?[^`]+``?|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "code", paragraph)
        yield from filter(None, re.split(r"(?<=[.?!])[)*\"]*\s+", plain))


def of_markdown(text):
    """The prose of a page: without code, and with the cells of tables as paragraphs."""
    text = re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.S | re.M)
    return re.sub(r"^\|.*$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.M)


def of_python(source):
    """The docstrings and comments of a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            found.append(ast.get_docstring(node) or "")
    line = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            begins = token.start[0] != line + 1 or token.line.strip()[0] != "#"
            found += ["", ""] if begins else [""]
            found[-1] = token.string.lstrip("# ")
            line = token.start[0]
    return "\n".join(f"\n{text}" if "\n" in text else text for text in found)


def _with_slashes(comment):
    """Return the text of a block comment as comments of one line each."""
    return "\n".join(f"// {line.strip(' *')}" for line in comment.splitlines()) + "\n"


def of_cpp(source):
    """The comments of a C++ or CUDA file."""
    blocks = re.sub(r"/\*(.*?)\*/", lambda block: _with_slashes(block[1]), source, flags=re.S)
    lines = []
    for line in blocks.splitlines():
        before, slashes, comment = line.partition("//")
        if before.strip() or not slashes:
            lines.append("")
        lines.append(comment.lstrip("/ ") if slashes and before.count('"') % 2 == 0 else "")
        if before.strip():
            lines.append("")
    return "\n".join(lines)


def prose(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return of_markdown(text)
    return of_python(text) if path.suffix == ".py" else of_cpp(text)


def problems(path):
    """Yield the problems of the sentences in a file, as (kind, sentence)."""
    for sentence in sentences(prose(path)):
        if len(re.findall(r"\w[\w'.,-]*", sentence)) > LONGEST:
            yield f"over {LONGEST} words", sentence
        for phrase in PHRASES:
            if re.search(rf"\b{phrase}\b", sentence, re.I):
                yield phrase, sentence


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for kind, sentence in problems(Path(name)):
            print(f"{name}: {kind}: {sentence}")

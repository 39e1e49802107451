"""Words that the project's glossary replaces stay out of gluon_gc."""

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "gluon_gc"
FILES = sorted(PACKAGE.rglob("*.py"))


class Rule(NamedTuple):
    words: str  # a regular expression
    instead: str
    kinds: str = "module identifier prose"
    folder: str = ""


RULES = [
    Rule("places?", "rank, key or offset"),
    Rule("meets?|met|meeting", "join or rendezvous"),
    Rule("spread|spreads|spreading", "assign, broadcast or all-gather"),
    Rule("bundles?|bundled|sections?", "message"),
    Rule("message_codecs?", "coder"),
    Rule("carried|carries", "state, keeps_state", "module identifier"),
    Rule("routes?", "stage, or message to a server"),
    Rule("ways?", "stage, or what differs", "module identifier"),
    Rule("heeds?|paces?|paced|gates?|lent|doors?|census|pulse|patience", "what is watched"),
    Rule("concerns?|left_out", "what a function decides, such as skipped", "module identifier"),
    Rule("rooms|additions|pieces|pool|pooling", "what is inside", "module"),
    Rule("lanes?", "queue: a lane is a part of a neutral exchange", folder="mxnet"),
]

PHRASES = {
    "in_place": "of an array that is overwritten, as PyTorch says",
    "under_way": "started and not finished",
    "two_way": "a value of compression_params['exchange']",
}
"""Accepted phrases, also with a space or a hyphen. The meaning is another one."""

ACCEPTED = {
    ("compression/blockwise.py", "spreads"): "the rotation of a block spreads an element over it",
}
"""Accepted words of a file, and why."""


def snake_case(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def texts(path, source):
    """Return, by kind, all that a file names or says, in lower case, with a line for each part."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    names = [snake_case(token.string) for token in tokens if token.type == tokenize.NAME]
    comments = [token.string.lower() for token in tokens if token.type == tokenize.COMMENT]
    statements = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Expr)]
    constants = [s.value for s in statements if isinstance(s, ast.Constant)]
    docstrings = [value.lower() for value in constants if isinstance(value, str)]
    return {
        "module": "\n".join(path.with_suffix("").parts),
        "identifier": "\n".join(names),
        "prose": "\n".join([*comments, *docstrings]),
    }


def forbidden(path, source):
    """Yield the forbidden words of a file, whose path is relative to gluon_gc."""
    phrases = "|".join(phrase.replace("_", r"[\s_#-]+") for phrase in PHRASES)
    for kind, text in texts(path, source).items():
        text = re.sub(rf"(?<![a-z0-9])(?:{phrases})(?![a-z0-9])", "", text)
        for rule in RULES:
            if kind not in rule.kinds or rule.folder not in ("", path.parts[0]):
                continue
            for found in re.findall(rf"(?<![a-z0-9])(?:{rule.words})(?![a-z0-9])", text):
                if (path.as_posix(), found) not in ACCEPTED:
                    yield f"{found} ({kind}): better {rule.instead}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_uses_the_words_of_the_glossary(path):
    assert not list(forbidden(path.relative_to(PACKAGE), path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "path, source",
    [
        ("torch/places.py", ""),
        ("torch/left_out.py", ""),
        ("torch/ops.py", "for place in arrays: pass"),
        ("torch/ops.py", "class MessageCodec: pass"),
        ("torch/ops.py", "gradient.spread_to(targets)"),
        ("torch/ops.py", "x = 1  # the place of a slice"),
        ("torch/ops.py", "def join():\n    '''Return when all workers meet.'''"),
        ("mxnet/server.py", "lane = 1"),
    ],
)
def test_a_forbidden_word_is_found(path, source):
    assert len(list(forbidden(Path(path), source))) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        ("torch/ops.py", "sum_in_place(array)  # in-place: ``array`` is overwritten in\n# place"),
        ("torch/ops.py", "request.under_way = 'a place'"),
        ("torch/ops.py", "replace(task, placeholder=1)"),
        ("exchange/exchange.py", "lane = 1"),
    ],
)
def test_an_accepted_word_is_not_found(path, source):
    assert not list(forbidden(Path(path), source))


def test_accepted_words_are_used():
    used = [found for found in ACCEPTED if found[1] in (PACKAGE / found[0]).read_text().split()]
    assert used == list(ACCEPTED)

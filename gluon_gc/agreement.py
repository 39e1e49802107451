"""How workers make sure that they fit together, before anything is exchanged.

Each worker states facts about what it is going to do. Digests of them are compared first. If those
differ, the facts themselves are compared, so that the error can name the first difference.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import env
from .version import __version__

_SETTINGS = ("BYTEPS_PARTITION_BYTES", "BYTEPS_MIN_COMPRESS_BYTES")
_BLOCK = 32  # facts that share a digest; those of a block must fit into one message
_MOST_CHARACTERS = 300  # of a value in a message

Facts = Sequence[Tuple[str, Mapping[str, Any]]]
"""Subjects, such as "the gradient of w" ("": the worker itself), with keys and plain values."""
Message = Dict[str, Any]


def reach(rank: int, facts: Facts, ask: Callable[[Message], Message]) -> None:
    """Return if all workers state the same facts, in the same order; all workers call this.

    Names of subjects may differ: they only appear in the error.

    Parameters
    ----------
    rank : int
        This worker's number.
    facts : Facts
        The settings that must be the same on all workers are added to them.
    ask : callable
        Gives the answer of `compare` to all workers' messages, given this worker's. The answer is
        the same on all workers.

    Raises
    ------
    RuntimeError
        Workers differ; on all of them.
    """
    settings = {name: env.get(name) for name in _SETTINGS}
    own = [[subject, _shortened(values)] for subject, values in (("", settings), *facts)]
    blocks = [own[begin : begin + _BLOCK] for begin in range(0, len(own), _BLOCK)]
    digests = [_digest([values for _, values in block]) for block in blocks]
    answer = ask({"rank": rank, "version": __version__, "digests": digests})
    if "block" in answer:
        block = blocks[answer["block"]] if answer["block"] < len(blocks) else []
        answer = ask({"rank": rank, "version": __version__, "facts": block})
    if answer:
        raise RuntimeError(f"the workers do not fit together: {answer['problem']}")


def compare(messages: List[Message]) -> Message:
    """The answer to all workers' messages: empty if they are the same."""
    first, *others = sorted(messages, key=lambda message: message["rank"])
    for message in messages:
        if message["version"] != __version__:
            return {
                "problem": f"worker {message['rank']} runs gluon_gc {message['version']}, "
                f"but {__version__} is here"
            }
    for message in others:
        if "digests" in message:
            pairs = itertools.zip_longest(first["digests"], message["digests"])
            for number, (one, other) in enumerate(pairs):
                if one != other:
                    return {"block": number}
            continue
        problem = _difference(first, message)
        if problem:
            return {"problem": problem}
    return {} if "digests" in first else {"problem": "they differ, but no fact does"}


def _difference(first: Message, other: Message) -> str:
    """The first fact that two workers do not share, in words."""
    here, there = f"worker {other['rank']}", f"worker {first['rank']}"
    for theirs, own in itertools.zip_longest(first["facts"], other["facts"]):
        if theirs is None:
            return f"{here} has {own[0]}, which {there} does not have"
        if own is None:
            return f"{there} has {theirs[0]}, which {here} does not have"
        for key in {**theirs[1], **own[1]}:
            value, expected = own[1].get(key), theirs[1].get(key)
            if value != expected:
                of = f" for {own[0]}" if own[0] else ""
                return f"{here} has {key} {_text(value)}{of}, but {there} has {_text(expected)}"
    return ""


def _text(value: Optional[str]) -> str:
    return "none" if value in (None, "null") else value


def _shortened(values: Mapping[str, Any]) -> Dict[str, str]:
    """Values as JSON; what is too long for a message, as a digest of it."""
    texts = {key: json.dumps(value) for key, value in values.items()}
    return {
        key: text if len(text) <= _MOST_CHARACTERS else f"(SHA-256 {_digest(text)})"
        for key, text in texts.items()
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

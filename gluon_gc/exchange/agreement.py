"""Checks that all workers have the same settings, before they exchange gradients.

Each worker lists facts, such as the size, dtype and compressor of each gradient. Workers compare
digests of blocks of facts first, and then the facts of the first block that differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from .. import env
from ..version import __version__

_SETTINGS = ("BYTEPS_PARTITION_BYTES", "BYTEPS_MIN_COMPRESS_BYTES")
_BLOCK = 32  # facts per digest; the facts of one block must fit into one message
_MOST_CHARACTERS = 300  # longer values are compared by their SHA-256

Facts = Sequence[Tuple[str, Mapping[str, Any]]]
"""Pairs of a subject and its values, which JSON can hold. The subject names the values in an error,
such as "the gradient of w". "" is the worker itself."""
Message = Dict[str, Any]


def reach(rank: int, facts: Facts, ask: Callable[[Message], Message]) -> None:
    """Check that all workers have the same facts, in the same order. All workers call this.

    Only the values are compared. Subjects may differ between workers. The environment variables in
    `_SETTINGS` are added. `ask` takes this worker's message, and returns the result of `compare`
    for the messages of all workers. All workers raise RuntimeError if facts differ.
    """
    own = stated(facts)
    blocks = [own[begin : begin + _BLOCK] for begin in range(0, len(own), _BLOCK)]
    digests = [_digest([values for _, values in block]) for block in blocks]
    answer = ask({"rank": rank, "version": __version__, "digests": digests})
    if "block" in answer:
        block = blocks[answer["block"]] if answer["block"] < len(blocks) else []
        answer = ask({"rank": rank, "version": __version__, "facts": block})
    if answer:
        raise RuntimeError(f"the workers do not fit together: {answer['problem']}")


def stated(facts: Facts) -> list[Any]:
    """Facts as a message has them, with the environment variables in `_SETTINGS`."""
    settings = {name: env.get(name) for name in _SETTINGS}
    return [[subject, _shortened(values)] for subject, values in (("", settings), *facts)]


def agree(rank: int, facts: Facts, gather: Callable[[Message], list[Message]]) -> None:
    """As `reach`, where `gather` takes this worker's message, and returns those of all workers."""
    reach(rank, facts, lambda message: compare(gather(message)))


def compare(messages: list[Message]) -> Message:
    """Compare the messages of all workers. The result is empty if they are the same.

    It is {"block": i} if digest i differs: the workers must then send the facts of that block. It
    is {"problem": text} with the first difference.
    """
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
        there, here = (f"worker {one['rank']}" for one in (first, message))
        problem = difference(there, first["facts"], here, message["facts"])
        if problem:
            return {"problem": problem}
    return {} if "digests" in first else {"problem": "their digests differ, but not their facts"}


def difference(there: str, their_facts: list[Any], here: str, own_facts: list[Any]) -> str:
    """The first difference between two results of `stated`, in words; "" if they are the same."""
    for theirs, own in itertools.zip_longest(their_facts, own_facts):
        if theirs is None:
            return f"{here} has {own[0]}, which {there} does not have"
        if own is None:
            return f"{there} has {theirs[0]}, which {here} does not have"
        for key in {**theirs[1], **own[1]}:
            value, expected = own[1].get(key), theirs[1].get(key)
            if value != expected:
                subject = f" for {own[0]}" if own[0] else ""
                return (
                    f"{here} has {key} {_text(value)}{subject}, but {there} has {_text(expected)}"
                )
    return ""


def _text(value: str | None) -> str:
    return "none" if value in (None, "null") else value


def _shortened(values: Mapping[str, Any]) -> dict[str, str]:
    """The values as JSON. A value that is too long for a message is replaced by its SHA-256."""
    texts = {key: json.dumps(value) for key, value in values.items()}
    return {
        key: text if len(text) <= _MOST_CHARACTERS else f"(SHA-256 {_digest(text)})"
        for key, text in texts.items()
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

"""Loads a checkpoint on all workers, or on none if one of them refuses it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Mapping, Sequence, Tuple, TypeVar

Prepared = TypeVar("Prepared")
Facts = Sequence[Tuple[str, Mapping[str, Any]]]
"""The type of `gluon_gc.agreement.Facts`."""

_REFUSED = "that it refuses"


def if_all_can(
    agree: Callable[[Facts], None],
    call: str,
    noun: str,
    prepare: Callable[[], Prepared],
    facts: Callable[[Prepared], Facts],
) -> Prepared:
    """Call `prepare`. Return its result if it succeeds on all workers, with the same facts.

    Parameters
    ----------
    agree : callable
        Takes facts. Raises RuntimeError unless they are the same on all workers. All workers call
        it together.
    call, noun : str
        The user's function and its argument, such as "load_states" and "file", for the error.
    prepare : callable
        Reads and checks a checkpoint. It changes nothing.
    facts : callable
        Takes the result of `prepare`. Returns the facts that must be the same on all workers.

    Raises
    ------
    Exception
        The error of `prepare`, on a worker where it fails.
    RuntimeError
        `prepare` fails on another worker, or the facts differ.
    """
    try:
        prepared = prepare()
    except Exception:
        with suppress(RuntimeError):  # the error of `prepare` says more
            agree([(call, {noun: _REFUSED})])
        raise
    agree(facts(prepared))
    return prepared

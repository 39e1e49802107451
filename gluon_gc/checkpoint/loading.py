"""Loading a checkpoint on all workers: all of them go on from it, or none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Mapping, Sequence, Tuple, TypeVar

Prepared = TypeVar("Prepared")
Facts = Sequence[Tuple[str, Mapping[str, Any]]]
"""As `gluon_gc.agreement` has them."""

_REFUSED = "that it refuses"


def if_all_can(
    agree: Callable[[Facts], None],
    call: str,
    noun: str,
    prepare: Callable[[], Prepared],
    facts: Callable[[Prepared], Facts],
) -> Prepared:
    """The result of `prepare`, if it succeeds on all workers with the same facts.

    Parameters
    ----------
    agree : callable
        Raises a RuntimeError unless all workers state the same facts; all workers call it together.
    call, noun : str
        The user's function and its argument, such as "load_states" and "file", for the error.
    prepare : callable
        Checks a checkpoint, and changes nothing.
    facts : callable
        Returns the facts that must be the same on all workers, given the result of `prepare`.

    Raises
    ------
    Exception
        The error of `prepare`, on a worker where it fails.
    RuntimeError
        It fails on another worker, or the facts differ.
    """
    try:
        prepared = prepare()
    except Exception:
        with suppress(RuntimeError):  # the error of `prepare` says more
            agree([(call, {noun: _REFUSED})])
        raise
    agree(facts(prepared))
    return prepared

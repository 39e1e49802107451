"""Tells an exception in flight from one that an except block handles."""

from __future__ import annotations

import ast
import linecache
import sys
from contextlib import suppress
from types import TracebackType
from typing import Optional, Sequence


def exception_in_flight() -> Optional[BaseException]:
    """The exception that will leave the current block, as in a ``finally`` block; None without one.

    An except block handles its exception, unless its last statement raises. Python has the same
    `sys.exc_info` in both cases, so the script's source decides. Without the source, as with
    ``python -c``, every exception is in flight.
    """
    error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None or not _is_handled(error.__traceback__):
        return error
    return None


def _is_handled(trace: TracebackType) -> bool:
    """Whether the function that the exception has reached is in an except block for it."""
    frame = trace.tb_frame
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    with suppress(SyntaxError):  # the file has changed
        return any(
            _covers(tried.body, trace.tb_lineno)
            and _covers([handler], frame.f_lineno)
            and not isinstance(handler.body[-1], ast.Raise)
            for tried in ast.walk(ast.parse("".join(lines)))
            for handler in getattr(tried, "handlers", ())
        )
    return False


def _covers(statements: Sequence[ast.AST], line: int) -> bool:
    return statements[0].lineno <= line <= statements[-1].end_lineno

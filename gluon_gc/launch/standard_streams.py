"""bpslaunch's stdin, stdout and stderr: each may be closed, or nobody may read it any more."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def open_closed() -> None:
    """Open /dev/null where one is closed, for this process and for those that it starts.

    Else the next file or socket would get its number, and children would write there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def discard(stream: IO[Any]) -> None:
    """Send to /dev/null the lines that a stream still holds, and all later ones."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def say(message: str) -> None:
    """Write a line to stderr, unless it cannot be written."""
    show(f"bpslaunch: {message}\n")


def show(text: str) -> None:
    """Write text to stderr, unless it cannot be written."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)

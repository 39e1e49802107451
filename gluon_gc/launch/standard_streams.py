"""Handles closed standard streams of bpslaunch, and streams that nobody reads any more."""

from __future__ import annotations

import os
import sys
from typing import IO, Any


def open_closed() -> None:
    """Open /dev/null in place of closed streams, for this process and its children.

    Otherwise the next file or socket would get the stream's number, and children would write to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `number`
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def discard(stream: IO[Any]) -> None:
    """Redirect a stream to /dev/null: its buffered lines and all later ones."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def say(message: str) -> None:
    """Write a line to stderr, with bpslaunch's name. A closed stderr is ignored."""
    show(f"bpslaunch: {message}\n")


def show(text: str) -> None:
    """Write text to stderr. A closed stderr is ignored."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)

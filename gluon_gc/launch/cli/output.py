"""Merges the output of several processes line by line, each line prefixed with its process's name.

A progress bar is a line that a carriage return overwrites. On a terminal, the newest bar stays on
the last row, below the scrolling lines. In a file or a pipe, only its final state is written.
"""

from __future__ import annotations

import os
import sys
from typing import IO, Any, BinaryIO

_ERASE = "\r\x1b[K"


class LineSplitter:
    """Cuts the output of one process into lines. The output may arrive in pieces of any size."""

    def __init__(self) -> None:
        self._open = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, as a terminal would show them."""
        *ended, self._open = (self._open + data).split(b"\n")
        if b"\r" in self._open:  # drop overwritten text
            restarted = b"\r" if self._open.endswith(b"\r") else b""
            self._open = b"\r" + _visible(self._open) + restarted
        return [_text(line) for line in ended]

    def close(self) -> list[str]:
        """The last line, if no newline ended it."""
        text = _text(self._open)
        self._open = b""
        return [text] if text.strip() else []

    @property
    def bar(self) -> str:
        """The current progress bar, or ""."""
        return _text(self._open).strip() if b"\r" in self._open else ""


def _visible(line: bytes) -> bytes:
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]


def _text(line: bytes) -> str:
    return _visible(line).decode(errors="replace")


class PrefixedOutput:
    """Writes lines to a stream, and bars if it is a terminal."""

    def __init__(self, stream: BinaryIO, terminal: bool) -> None:
        self.error: OSError | None = None
        self.last_name = ""
        self._stream = stream
        self._terminal = terminal
        self._owner = ""
        self._bar = ""

    def line(self, name: str, text: str) -> None:
        """Write a complete line of the process `name`."""
        self.last_name = name
        erase = _ERASE if self._bar else ""
        if name == self._owner:
            self._bar = ""
        self._write(f"{erase}[{name}] {text}\n{self._bar}")

    def bar(self, name: str, text: str) -> None:
        """Draw the progress bar of the process `name`. An empty `text` erases it."""
        if not self._terminal or (not text and name != self._owner):
            return
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:  # the terminal has gone
            return
        bar = f"[{name}] {text}"[: columns - 1] if text else ""
        if bar != self._bar:
            self._owner, self._bar = name, bar
            self._write(_ERASE + bar)

    def _write(self, text: str) -> None:
        if self.error is not None:
            return
        try:
            self._stream.write(text.encode())
            self._stream.flush()
        except OSError as error:
            self.error = error
            discard(self._stream)


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


def print_line(text: str) -> None:
    """Print a line to stdout. It is dropped if the reader of stdout, such as head, has ended."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)


def say(message: str) -> None:
    """Write a line to stderr, with bpslaunch's name. A closed stderr is ignored."""
    show(f"bpslaunch: {message}\n")


def show(text: str) -> None:
    """Write text to stderr. A closed stderr is ignored."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)

"""Turns the COMMAND of bpslaunch into a program and its arguments."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import takewhile
from typing import Sequence

from ...env import ConfigurationError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_REDIRECTION = re.compile(r"\d*(<|>>?)(&\d+|\S*)|&>\S*")
_BETWEEN_PROGRAMS = {"|", "||", "&&", ";"}
# The program gets the same signal as the shell. The shell waits for it, and exits with its code.
_PATIENT = "trap exit HUP INT TERM; "


def runnable(command: Sequence[str]) -> list[str]:
    """The program and the arguments of COMMAND.

    BytePS joins the words of COMMAND and passes them to a shell, and published scripts rely on it.
    So some words keep their meaning for a shell:

    * ``NAME=value`` in front sets a variable,
    * ``2>&1``, ``>`` and the like are redirections,
    * ``|``, ``||``, ``&&`` and ``;`` join programs,
    * a first word with other shell syntax passes the whole COMMAND to a shell.

    All other words are passed to the program unchanged.

    The shell is bash, with pipefail: a pipeline fails if any of its programs fails. Without bash
    it is sh, which only checks the last program of a pipeline, and does not know ``&>``.
    """
    variables = list(takewhile(_ASSIGNMENT.fullmatch, command))
    words = list(command[len(variables) :])
    if not words:
        raise ConfigurationError("a worker needs a COMMAND to run")
    is_program = shutil.which(words[0]) is not None
    if not is_program and shlex.quote(words[0]) == words[0]:
        suggestion = f"; did you mean `{shlex.join(['python', *words])}`?"
        hint = suggestion if words[0].endswith(".py") else ""
        raise ConfigurationError(f"COMMAND must be a program, got {words[0]!r}{hint}")
    if not is_program:
        words = _in_shell(_PATIENT + " ".join(words))
    elif not _BETWEEN_PROGRAMS.isdisjoint(words):
        return _in_shell(_PATIENT + _quoted(command))
    elif len(words) == 1 or any(map(_REDIRECTION.fullmatch, words)):
        words = _in_shell("exec " + _quoted(words))
    return ["env", *variables, *words] if variables else words


def keeps_shell(program: Sequence[str]) -> bool:
    """Whether a result of `runnable` is a shell that keeps running beside its programs."""
    return program[-1].startswith(_PATIENT)


def _in_shell(line: str) -> list[str]:
    bash = shutil.which("bash")
    shell = ["/bin/sh"] if bash is None else [bash, "-o", "pipefail"]
    return [*shell, "-c", line]


def _quoted(words: Sequence[str]) -> str:
    """The words as a line for a shell, quoted except for operators, redirections and names."""
    return " ".join(map(_as_word, words))


def _as_word(word: str) -> str:
    if word in _BETWEEN_PROGRAMS or _REDIRECTION.fullmatch(word):
        return word
    name, equals, value = word.partition("=")
    if equals and name.isidentifier():  # sets a variable if it is in front of a program
        return f"{name}={shlex.quote(value)}"
    return shlex.quote(word)

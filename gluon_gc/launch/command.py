"""The COMMAND of bpslaunch, as a program and its arguments."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import takewhile
from typing import List, Sequence

from ..env import ConfigurationError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_REDIRECTION = re.compile(r"\d*(<|>>?)(&\d+|\S*)|&>\S*")
_BETWEEN_PROGRAMS = {"|", "||", "&&", ";"}
# On a signal the shell waits for the program that has it too, and ends with that one's code.
_PATIENT = "trap exit HUP INT TERM; "


def runnable(command: Sequence[str]) -> List[str]:
    """COMMAND as a program and its arguments.

    BytePS joins the words of COMMAND and hands them to a shell, and published scripts rely on it.
    So words such as ``NAME=value`` in front are variables, words such as ``2>&1`` and ``>`` are
    redirections, and ``|``, ``||``, ``&&`` and ``;`` are what they are to a shell. A single word,
    or a first one, that is not a name, but something that only a shell can read, goes to a shell
    with all that follow. Every other word is taken as it is.

    The shell is bash: of programs with a ``|`` between them, all must end well. Where there is
    none, it is sh, which asks the last one alone, and knows no ``&>``.

    Raises
    ------
    ConfigurationError
        There is no program, or none of that name.
    """
    variables = list(takewhile(_ASSIGNMENT.fullmatch, command))
    words = list(command[len(variables) :])
    if not words:
        raise ConfigurationError("a worker needs a COMMAND to run")
    is_program = shutil.which(words[0]) is not None
    if not is_program and shlex.quote(words[0]) == words[0]:
        raise ConfigurationError(f"COMMAND must be a program, got {words[0]!r}{_hint(words)}")
    if not is_program:
        words = _in_shell(_PATIENT + " ".join(words))
    elif not _BETWEEN_PROGRAMS.isdisjoint(words):
        return _in_shell(_PATIENT + _quoted(command))
    elif len(words) == 1 or any(map(_REDIRECTION.fullmatch, words)):
        words = _in_shell("exec " + _quoted(words))
    return ["env", *variables, *words] if variables else words


def keeps_shell(program: Sequence[str]) -> bool:
    """Whether what `runnable` returned is a shell, not what this turns into."""
    return program[-1].startswith(_PATIENT)


def _in_shell(line: str) -> List[str]:
    bash = shutil.which("bash")
    shell = ["/bin/sh"] if bash is None else [bash, "-o", "pipefail"]
    return [*shell, "-c", line]


def _quoted(words: Sequence[str]) -> str:
    """The words for a shell, which is to take them as they are, but for what it is there for."""
    return " ".join(map(_as_word, words))


def _as_word(word: str) -> str:
    if word in _BETWEEN_PROGRAMS or _REDIRECTION.fullmatch(word):
        return word
    name, equals, value = word.partition("=")
    if equals and name.isidentifier():  # a variable, if it is in front of a program
        return f"{name}={shlex.quote(value)}"
    return shlex.quote(word)


def _hint(words: Sequence[str]) -> str:
    is_script = words[0].endswith(".py")
    return f"; did you mean `{shlex.join(['python', *words])}`?" if is_script else ""

"""The COMMAND of bpslaunch, as a program and its arguments."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import takewhile
from typing import List, Sequence

from ..env import ConfigurationError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_REDIRECTION = re.compile(r"\d*(<|>>?)(&\d+|\S+)")


def runnable(command: Sequence[str]) -> List[str]:
    """COMMAND as a program and its arguments.

    BytePS joins the words of COMMAND and hands them to a shell, and published scripts rely on it.
    So words such as ``NAME=value`` in front are variables, words such as ``2>&1`` are redirections,
    and a single word, or a first one that is not a name, but something that only a shell can read,
    goes to a shell with all that follow. Every other word is taken as it is.

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
    if not is_program or len(words) == 1:
        words = ["/bin/sh", "-c", " ".join(words)]
    elif any(_REDIRECTION.fullmatch(word) for word in words):
        quoted = (word if _REDIRECTION.fullmatch(word) else shlex.quote(word) for word in words)
        words = ["/bin/sh", "-c", "exec " + " ".join(quoted)]
    return ["env", *variables, *words] if variables else words


def _hint(words: Sequence[str]) -> str:
    is_script = words[0].endswith(".py")
    return f"; did you mean `{shlex.join(['python', *words])}`?" if is_script else ""

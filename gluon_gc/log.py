"""The logger of gluon_gc. It writes to stderr, at the level of BYTEPS_LOG_LEVEL."""

import functools
import logging
import sys
from typing import Any

from . import env

_LEVELS = {"TRACE": logging.DEBUG, "FATAL": logging.CRITICAL}  # levels that Python does not have

logger = logging.getLogger("gluon_gc")
if not logger.handlers:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("gluon_gc: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    level = env.get("BYTEPS_LOG_LEVEL")
    logger.setLevel(_LEVELS.get(level, level))


@functools.lru_cache(maxsize=None)
def warn_once(message: str, *values: Any) -> None:
    """Log a warning, once in this process."""
    logger.warning(message, *values)


def warn_of_misspelt() -> None:
    """Warn of variables that look like gluon_gc's but are not read."""
    for name, suggestion in env.misspelt().items():
        question = f"; did you mean {suggestion}?" if suggestion else ""
        warn_once("nothing reads the variable %s%s", name, question)

"""The logger of gluon_gc. It writes to stderr, at the level of BYTEPS_LOG_LEVEL."""

import functools
import logging
import sys

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


@functools.lru_cache(maxsize=None)  # one warning per process
def warn_of_misspelt() -> None:
    """Warn of variables that look like gluon_gc's but are not read."""
    for name, suggestion in env.misspelt().items():
        question = f"; did you mean {suggestion}?" if suggestion else ""
        logger.warning("nothing reads the variable %s%s", name, question)

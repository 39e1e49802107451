"""Helpers to start processes in tests."""

import os
import signal

from gluon_gc.variables import TABLE
from gluon_gc.variables_of_launchers import OF_LAUNCHERS


def clean_environ():
    """Return the environment without variables of gluon_gc (but its library) and of launchers."""
    rows = (*TABLE, *OF_LAUNCHERS)
    known = {name for row in rows for name in (row.name, row.older)} - {"GLUON_GC_LIBRARY"}
    return {name: text for name, text in os.environ.items() if name not in known}


def heed_interrupts():
    """Restore SIGINT in a preexec_fn, because a shell's background jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""How tests start processes."""

import os
import signal

from gluon_gc.variables import TABLE
from gluon_gc.variables_of_launchers import OF_LAUNCHERS


def clean_environ():
    """The environment without the variables of gluon_gc and of launchers, but with its library."""
    rows = (*TABLE, *OF_LAUNCHERS)
    known = {name for row in rows for name in (row.name, row.older)} - {"GLUON_GC_LIBRARY"}
    return {name: text for name, text in os.environ.items() if name not in known}


def heed_interrupts():
    """A preexec_fn: a shell's background job ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""How tests start processes."""

import os
import signal

from gluon_gc.variables import TABLE


def clean_environ():
    """The environment without the settings of gluon_gc, but with the library that is tested."""
    known = {name for row in TABLE for name in (row.name, row.older)} - {"GLUON_GC_LIBRARY"}
    return {name: text for name, text in os.environ.items() if name not in known}


def heed_interrupts():
    """A preexec_fn: a shell's background job ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

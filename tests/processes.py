"""For tests that interrupt what they start."""

import signal


def heed_interrupts():
    """A preexec_fn: a shell's background job ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""Helpers to start processes in tests."""

import itertools
import os
import random
import signal
import socket

from gluon_gc.env.variables import OF_LAUNCHERS, TABLE

_ports = itertools.count(random.SystemRandom().randrange(2000))


def clean_environ():
    """Return the environment without variables of gluon_gc (but its library) and of launchers."""
    rows = (*TABLE, *OF_LAUNCHERS)
    known = {name for row in rows for name in (row.name, row.older)} - {"GLUON_GC_LIBRARY"}
    return {name: text for name, text in os.environ.items() if name not in known}


def heed_interrupts():
    """Restore SIGINT in a preexec_fn, because a shell's background jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def free_port():
    """A port of 127.0.0.1 that nothing listens at.

    The kernel gives ports from 32768 on to connections. A worker that waits for a listener there
    may take the listener's port for its own end, and meet itself. Each of pytest's workers has
    ports of its own, because a test's process may listen some seconds later.
    """
    first = 20000 + 2000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        port = first + next(_ports) % 2000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

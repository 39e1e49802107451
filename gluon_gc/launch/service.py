"""Runs a server or the scheduler in a process of its own: `launcher.service` says how it starts.

It starts by the path of this file, since -m would put the current directory first on sys.path: a
checkout's gluon_gc there, or a user's http.py, would be taken for the installed one.
"""

from __future__ import annotations

import sys
from importlib import import_module

SERVICES = {"scheduler": "gluon_gc.launch.scheduler", "server": "gluon_gc.mxnet.server"}


def main(role: str) -> None:
    """Serve as `role`, "server" or "scheduler", until all workers are done."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this file's folder, whose modules are to be found within gluon_gc only
    from gluon_gc.env import ConfigurationError
    from gluon_gc.launch.leaving import die, end, exit_code

    try:
        import_module(SERVICES[role]).serve()
        end(0)
    except (ImportError, OSError, RuntimeError, ConfigurationError) as error:
        die(f"{role}: {error}", exit_code(error))


if __name__ == "__main__":
    main(sys.argv[1])

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
    from gluon_gc.launch.leaving import NotNeededError, die, end, exit_code

    try:
        _serve(role)
        end(0)
    except NotNeededError:
        end(0)
    except (ImportError, OSError, RuntimeError, ConfigurationError) as error:
        die(f"{role}: {error}", exit_code(error))


def _serve(role: str) -> None:
    from gluon_gc.launch import ps_lite

    if role == "server" and not ps_lite.is_installed():
        _refuse_workers_of_mxnet()
    import_module(SERVICES[role]).serve()


def _refuse_workers_of_mxnet() -> None:
    """Meet the others without MXNet: raise NotNeededError, or tell them that a server needs it."""
    from gluon_gc import env
    from gluon_gc.launch.joining import join

    lifeline = join(env.cluster("server"), env.get("GLUON_GC_CONNECT_TIMEOUT"))
    lifeline.abandon("MXNet is not installed")


if __name__ == "__main__":
    main(sys.argv[1])

"""The main program of a server's or the scheduler's process, which `tasks.service` starts.

It is started by the path of this file. `python -m` would put the current directory first on
sys.path, so that a checkout of gluon_gc or a user's http.py there would hide the installed module.
"""

from __future__ import annotations

import sys
from importlib import import_module

SERVICES = {"scheduler": "gluon_gc.launch.scheduler.scheduler", "server": "gluon_gc.mxnet.server"}


def main(role: str) -> None:
    """Serve as `role`, "server" or "scheduler", until all workers are done."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this file's folder: its modules must only be found within gluon_gc
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
    from gluon_gc.launch.scheduler import ps_lite

    if role == "server" and not ps_lite.is_installed():
        from gluon_gc import env
        from gluon_gc.launch.scheduler.lifeline import join

        # After a job of PyTorch, this raises NotNeededError. Otherwise all nodes end.
        lifeline = join(env.cluster("server"), env.get("GLUON_GC_CONNECT_TIMEOUT"))
        lifeline.abandon("MXNet is not installed")
    import_module(SERVICES[role]).serve()


if __name__ == "__main__":
    main(sys.argv[1])

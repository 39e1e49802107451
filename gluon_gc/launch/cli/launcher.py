"""bpslaunch: starts the processes of a cluster on this machine, or with --local a whole cluster.

The role of the machine is in the environment, under the names of BytePS.
This module does not import MXNet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Callable, NoReturn, Sequence

from ... import env
from ...log import warn_of_misspelt
from ...version import __version__
from ..scheduler import ps_lite
from ..scheduler.listening import listen
from . import supervisor
from .command import keeps_shell, runnable
from .output import open_closed, say, show
from .supervisor import Task
from .tasks import local_tasks, service, worker_tasks


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise env.ConfigurationError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bpslaunch",
        usage="bpslaunch [--max-restarts N] COMMAND...\n"
        "       bpslaunch --local -n WORKERS [-s SERVERS] [--max-restarts N] COMMAND...\n"
        "       bpslaunch --local -n WORKERS --backend horovod [--max-restarts N] COMMAND...",
        description="Without --local, environment variables such as DMLC_ROLE choose what to "
        "start: a scheduler, a server, or workers. Each visible device gets one worker, which runs "
        "COMMAND. A scheduler and a server need no COMMAND.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--local", action="store_true", help="start a whole cluster on this machine"
    )
    parser.add_argument("--version", action="version", version=f"gluon_gc {__version__}")
    parser.add_argument(
        *("-n", "-np"),
        type=int,
        metavar="WORKERS",
        help="with --local: number of workers (default 1)",
    )
    parser.add_argument(
        "-s",
        type=int,
        metavar="SERVERS",
        help="with --local: number of servers (default 1, or 0 if MXNet is not installed). With 0, "
        "no scheduler is started either: MXNet's workers share memory, and PyTorch's need none",
    )
    parser.add_argument(
        "--backend",
        choices=("dist_sync", "horovod"),
        help="with --local: MXNet's parameter server (dist_sync, the default) or Horovod",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="restart all processes of this bpslaunch when one of them fails, at most N times "
        "(default 0). Give bpslaunch the same N on all nodes",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command of each worker"
    )
    return parser


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    arguments = _parser().parse_args(argv)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    for name, least, kind in (("n", 1, "positive"), ("s", 0, "count")):
        value = getattr(arguments, name)
        if value is not None and not arguments.local:
            raise env.ConfigurationError(f"-{name} needs --local")
        if value is not None and value < least:
            raise env.ConfigurationError(f"-{name} must be {env.KINDS[kind][0]}, got {value}")
    if arguments.max_restarts < 0:
        rule = env.KINDS["count"][0]
        raise env.ConfigurationError(f"--max-restarts must be {rule}, got {arguments.max_restarts}")
    if arguments.backend is not None and not arguments.local:
        raise env.ConfigurationError("--backend needs --local")
    if arguments.backend == "horovod" and arguments.s is not None:
        raise env.ConfigurationError(
            "-s must be left out with --backend horovod, which has no servers"
        )
    return arguments


def horovod_command(command: Sequence[str], workers: int) -> list[str]:
    """The horovodrun command that runs `command` on this number of workers on this machine."""
    beside_python = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    horovodrun = beside_python or shutil.which("horovodrun")
    if horovodrun is None:
        raise env.ConfigurationError("--backend horovod needs horovodrun: docs/guides/horovod.md")
    return [horovodrun, "--gloo", "-np", str(workers), *runnable(command)]


def _run(tasks: Callable[[], list[Task]], max_restarts: int) -> int:
    """Run the tasks that `tasks` returns. After a failure, call it again and restart them."""

    def again(restarts: int) -> list[Task]:
        changes = {"GLUON_GC_RESTARTS": str(restarts)} if max_restarts else {}
        return [replace(task, environ={**task.environ, **changes}) for task in tasks()]

    return supervisor.run(again, max_restarts)


def _run_alone(task: Task, max_restarts: int) -> int:
    """Run the only process of this machine."""
    # The process replaces this one, and gets its signals, terminal and exit code. A shell would
    # not pass signals on to its program, so it needs a supervisor.
    if not max_restarts and not keeps_shell(task.command):
        os.execvpe(task.command[0], task.command, task.environ)
    return _run(lambda: [replace(task, bare=True)], max_restarts)


def _start(arguments: argparse.Namespace) -> int:
    command, workers, restarts = arguments.command, arguments.n or 1, arguments.max_restarts
    if arguments.backend == "horovod":
        horovod = Task("horovodrun", horovod_command(command, workers), env.for_child({}))
        return _run_alone(horovod, restarts)
    if arguments.local:
        servers = _servers(arguments.s)
        return _run(lambda: local_tasks(command, workers, servers), restarts)
    if not env.is_set("DMLC_ROLE"):
        if not command:
            show(_parser().format_usage())
        raise env.ConfigurationError(
            "DMLC_ROLE is not set: set it to worker, server or scheduler, or use --local, which "
            "starts a whole cluster on this machine"
        )
    role = env.get("DMLC_ROLE")
    if role == "worker":
        tasks = worker_tasks(command)
        if len(tasks) > 1:
            return _run(lambda: worker_tasks(command), restarts)
        return _run_alone(tasks[0], restarts)
    warn_of_misspelt()
    if env.one_machine():
        say(
            f"no {role} is needed if DMLC_NUM_WORKER is 1, because the workers share memory; set "
            "BYTEPS_FORCE_DISTRIBUTED=1 to start it"
        )
        return 0
    if not env.get("DMLC_NUM_SERVER"):
        say(f"no {role} is needed if DMLC_NUM_SERVER is 0: PyTorch's workers use no servers")
        return 0
    cluster = env.cluster()
    if role == "scheduler":
        listen(cluster.root_uri, cluster.root_port).close()  # report a bad address now
    return _run_alone(Task(role, service(role), env.for_service({"DMLC_ROLE": None})), restarts)


def _servers(wanted: int | None) -> int:
    """The number of servers of a cluster on this machine: 0 without MXNet, which they need."""
    if ps_lite.is_installed():
        return 1 if wanted is None else wanted
    if wanted:
        say(f"-s {wanted} is ignored: servers are for MXNet, which is not installed")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run bpslaunch with these arguments, or the command line's. Returns the exit code."""
    open_closed()
    try:
        return _start(_parse(sys.argv[1:] if argv is None else argv))
    except env.ConfigurationError as error:
        say(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())

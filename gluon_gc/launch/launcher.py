"""bpslaunch: starts this machine's part of a cluster, or with --local a whole cluster here.

The role comes from the environment, as BytePS reads it (`gluon_gc.variables` lists what it reads).
Imports no MXNet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, NoReturn, Optional, Sequence

from .. import env
from ..log import warn_of_misspelt
from ..variables import KINDS
from ..version import __version__
from . import ps_lite, supervisor
from .child import Task
from .command import keeps_shell, runnable
from .listening import listen
from .standard_streams import open_closed, say, show
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
        description="Without --local, DMLC_ROLE and its like say what to start: a scheduler or a "
        "server, which need no COMMAND, or workers, which run it once for every visible device.",
        allow_abbrev=False,
    )
    parser.add_argument("--local", action="store_true", help="a whole cluster on this machine")
    parser.add_argument("--version", action="version", version=f"gluon_gc {__version__}")
    parser.add_argument(
        *("-n", "-np"), type=int, metavar="WORKERS", help="with --local: workers (default 1)"
    )
    parser.add_argument(
        "-s",
        type=int,
        metavar="SERVERS",
        help="with --local: servers (default 1, or 0 where MXNet is not installed); 0: no "
        "scheduler either, since PyTorch's workers need none, and MXNet's share memory",
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
        help="how often to start all again that this bpslaunch has started, when one of them fails "
        "(default 0); give the bpslaunch of every node the same",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what each worker runs"
    )
    return parser


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    arguments = _parser().parse_args(argv)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    for name, least, kind in (("n", 1, "positive"), ("s", 0, "count")):
        value = getattr(arguments, name)
        if value is not None and not arguments.local:
            raise env.ConfigurationError(f"-{name} goes with --local")
        if value is not None and value < least:
            raise env.ConfigurationError(f"-{name} must be {KINDS[kind][0]}, got {value}")
    if arguments.max_restarts < 0:
        rule = KINDS["count"][0]
        raise env.ConfigurationError(f"--max-restarts must be {rule}, got {arguments.max_restarts}")
    if arguments.backend is not None and not arguments.local:
        raise env.ConfigurationError("--backend goes with --local")
    if arguments.backend == "horovod" and arguments.s is not None:
        raise env.ConfigurationError("-s does not go with --backend horovod, which has no servers")
    return arguments


def horovod_command(command: Sequence[str], workers: int) -> List[str]:
    """The command that runs this one on workers of this machine that use Horovod."""
    beside_python = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    horovodrun = beside_python or shutil.which("horovodrun")
    if horovodrun is None:
        raise env.ConfigurationError("--backend horovod needs horovodrun: docs/guides/horovod.md")
    return [horovodrun, "--gloo", "-np", str(workers), *runnable(command)]


def _become(command: Sequence[str], environ: dict) -> NoReturn:
    """Replace this process by the command, which then has its signals, terminal and exit code."""
    os.execvpe(command[0], list(command), environ)


def _run(tasks: Callable[[], List[Task]], max_restarts: int) -> int:
    """Run the tasks that `tasks` makes, and make them again after a failure."""

    def again(restarts: int) -> List[Task]:
        changes = {"GLUON_GC_RESTARTS": str(restarts)} if max_restarts else {}
        return [replace(task, environ={**task.environ, **changes}) for task in tasks()]

    return supervisor.run(again, max_restarts)


def _run_alone(task: Task, max_restarts: int) -> int:
    """Run the only process of this machine."""
    if not max_restarts and not keeps_shell(task.command):  # which would not pass signals on
        _become(task.command, task.environ)
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
        _refuse_without_role(command)
    role = env.get("DMLC_ROLE")
    if role == "worker":
        tasks = worker_tasks(command)
        if len(tasks) > 1:
            return _run(lambda: worker_tasks(command), restarts)
        return _run_alone(tasks[0], restarts)
    warn_of_misspelt()
    if env.one_machine():
        say(
            f"no {role} is needed where DMLC_NUM_WORKER is 1: the workers share memory, "
            "unless BYTEPS_FORCE_DISTRIBUTED=1 is set"
        )
        return 0
    if not env.get("DMLC_NUM_SERVER"):
        say(f"no {role} is needed where DMLC_NUM_SERVER is 0: the workers are PyTorch's")
        return 0
    cluster = env.cluster()
    if role == "scheduler":
        listen(cluster.root_uri, cluster.root_port).close()  # fails now if it cannot
    return _run_alone(Task(role, service(role), env.for_service({"DMLC_ROLE": None})), restarts)


def _servers(wanted: Optional[int]) -> int:
    """The number of servers of a cluster on this machine. Servers need MXNet."""
    if ps_lite.is_installed():
        return 1 if wanted is None else wanted
    if wanted:
        say(f"-s {wanted} is ignored: servers are for MXNet, which is not installed")
    return 0


def _refuse_without_role(command: Sequence[str]) -> NoReturn:
    if not command:
        show(_parser().format_usage())
    raise env.ConfigurationError(
        "DMLC_ROLE is not set: worker, server or scheduler; "
        "--local needs none, and starts a whole cluster on this machine"
    )


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run bpslaunch with these arguments, by default the command line's; returns the exit code."""
    open_closed()
    try:
        return _start(_parse(sys.argv[1:] if argv is None else argv))
    except env.ConfigurationError as error:
        say(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())

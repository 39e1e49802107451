"""bpslaunch: starts this machine's part of a cluster, or with --local a whole cluster here.

The role comes from the environment, as BytePS reads it (`gluon_gc.variables` lists what it reads).
Imports no MXNet.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NoReturn, Optional, Sequence

from .. import env
from ..log import warn_of_misspelt
from ..version import __version__
from . import census, supervisor
from .command import keeps_shell, runnable
from .standard_streams import open_closed, say, show
from .supervisor import Task

_NODES = Path("/sys/devices/system/node")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise env.ConfigurationError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bpslaunch",
        usage="bpslaunch [--max-restarts N] COMMAND...\n"
        "       bpslaunch --local -n WORKERS -s SERVERS [--max-restarts N] COMMAND...\n"
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
    parser.add_argument("-s", type=int, metavar="SERVERS", help="with --local: servers (default 1)")
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
    for name in ("n", "s"):
        value = getattr(arguments, name)
        if value is not None and not arguments.local:
            raise env.ConfigurationError(f"-{name} goes with --local")
        if value is not None and value < 1:
            raise env.ConfigurationError(f"-{name} must be a positive whole number, got {value}")
    if arguments.max_restarts < 0:
        rule = env.KINDS["count"][0]
        raise env.ConfigurationError(f"--max-restarts must be {rule}, got {arguments.max_restarts}")
    if arguments.backend is not None and not arguments.local:
        raise env.ConfigurationError("--backend goes with --local")
    if arguments.backend == "horovod" and arguments.s is not None:
        raise env.ConfigurationError("-s does not go with --backend horovod, which has no servers")
    return arguments


def service(role: str) -> List[str]:
    """The command of a server or the scheduler, whose current directory is not on sys.path."""
    path = Path(__file__).resolve().with_name("service.py")
    return [sys.executable, str(path), role]


def _bound_to_numa_node(command: List[str], local_rank: int, local_size: int) -> List[str]:
    """The command on its share of the NUMA nodes, where BYTEPS_NUMA_ON asks for that."""
    if not env.get("BYTEPS_NUMA_ON") or shutil.which("numactl") is None:
        return command
    nodes = sorted(int(path.name[4:]) for path in _NODES.glob("node[0-9]*"))
    if len(nodes) < 2:
        return command
    node = nodes[local_rank * len(nodes) // local_size]
    return ["numactl", f"--cpunodebind={node}", "--localalloc", *command]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _cluster_here(workers: int, servers: int) -> Dict[str, Optional[str]]:
    """The variables of a cluster on this machine, as changes to the environment."""
    return {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_ROLE": None,
        "DMLC_WORKER_ID": None,
        "DMLC_PS_VAN_TYPE": env.get("DMLC_PS_VAN_TYPE"),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "GLUON_GC_SECRET": env.get("GLUON_GC_SECRET") or secrets.token_hex(16),
        "OMP_NUM_THREADS": str(env.get("OMP_NUM_THREADS") or max(1, env.cores() // workers)),
    }


def _service_tasks(cluster: Mapping[str, Optional[str]]) -> List[Task]:
    """The scheduler and the servers of a cluster on this machine."""
    environ = env.for_service(cluster)
    tasks = [Task("scheduler", service("scheduler"), environ, service=True)]
    for index in range(int(cluster["DMLC_NUM_SERVER"])):
        tasks.append(Task(f"server {index}", service("server"), environ, service=True))
    return tasks


def local_tasks(command: Sequence[str], workers: int, servers: int) -> List[Task]:
    """The processes of a cluster on this machine, in which every worker counts as a machine."""
    program = runnable(command)
    cluster = _cluster_here(workers, servers)
    tasks = _service_tasks(cluster)
    for rank in range(workers):
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}
        if env.get("BYTEPS_TRACE_ON"):  # machines of their own would not share a directory
            own["BYTEPS_TRACE_DIR"] = os.path.join(env.get("BYTEPS_TRACE_DIR"), f"worker{rank}")
        tasks.append(Task(f"worker {rank}", program, env.for_child({**cluster, **own})))
    return tasks


def horovod_command(command: Sequence[str], workers: int) -> List[str]:
    """What runs the command on this many workers of this machine, with Horovod between them."""
    beside_python = shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    horovodrun = beside_python or shutil.which("horovodrun")
    if horovodrun is None:
        raise env.ConfigurationError("--backend horovod needs horovodrun: docs/horovod.md")
    return [horovodrun, "--gloo", "-np", str(workers), *runnable(command)]


def _devices() -> List[str]:
    """The devices that NVIDIA_VISIBLE_DEVICES lists; none where it says all or nothing."""
    listed = env.get("NVIDIA_VISIBLE_DEVICES") or "none"
    if listed in ("all", "none", "void"):
        return []
    return [device.strip() for device in listed.split(",")]


def worker_tasks(command: Sequence[str]) -> List[Task]:
    """This machine's workers: one a visible device, or BYTEPS_LOCAL_SIZE of them.

    All see all devices; scripts choose theirs as ``mx.gpu(bps.local_rank())``.
    """
    program = runnable(command)
    size = len(_devices()) or env.get("BYTEPS_LOCAL_SIZE")
    first, tasks, here = 0, [], {}
    if not env.one_machine():
        first = env.cluster().worker_id * size
    elif size > 1:
        here = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(_free_port())}
    for local_rank in range(size):
        own = {"BYTEPS_LOCAL_RANK": str(local_rank), "BYTEPS_LOCAL_SIZE": str(size)}
        bound = _bound_to_numa_node(program, local_rank, size)
        tasks.append(Task(f"worker {first + local_rank}", bound, env.for_child({**here, **own})))
    return tasks


def _become(command: Sequence[str], environ: dict) -> NoReturn:
    """Turn into the command: its signals, terminal and exit code need no forwarding."""
    os.execvpe(command[0], list(command), environ)


def _run(tasks: Callable[[], List[Task]], max_restarts: int) -> int:
    """Run what `tasks` makes, and what it makes once more after a failure."""

    def again(restarts: int) -> List[Task]:
        told = {"GLUON_GC_RESTARTS": str(restarts)} if max_restarts else {}
        return [replace(task, environ={**task.environ, **told}) for task in tasks()]

    return supervisor.run(again, max_restarts)


def _run_alone(task: Task, max_restarts: int) -> int:
    """Run the only process that there is to start."""
    if not max_restarts and not keeps_shell(task.command):  # which would not pass signals on
        _become(task.command, task.environ)
    return _run(lambda: [replace(task, bare=True)], max_restarts)


def _start(arguments: argparse.Namespace) -> int:
    command, workers, restarts = arguments.command, arguments.n or 1, arguments.max_restarts
    if arguments.backend == "horovod":
        horovod = Task("horovodrun", horovod_command(command, workers), env.for_child({}))
        return _run_alone(horovod, restarts)
    if arguments.local:
        return _run(lambda: local_tasks(command, workers, arguments.s or 1), restarts)
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
    cluster = env.cluster()
    if role == "scheduler":
        census.listen(cluster.root_uri, cluster.root_port).close()  # to be told now if it cannot
    return _run_alone(Task(role, service(role), env.for_service({"DMLC_ROLE": None})), restarts)


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

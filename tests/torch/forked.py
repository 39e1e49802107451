"""Starts workers by forking a process that has imported PyTorch: saves four processor seconds each.

The workers get torchrun's variables for workers, but not those of torchrun's agent.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
import time
from functools import lru_cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Mapping
from unittest import mock

from tests.mxnet.cluster.nursery import die_with_parent
from tests.processes import free_port

IMPORTED = ["gluon_gc.torch", "tests.torch.test_workers"]
IMPORTED += ["torch._dynamo", "torch.distributed.fsdp"]  # what an optimizer or fully_shard imports


@lru_cache(maxsize=None)
def server(variables: frozenset) -> ForkServerContext:
    """Return a context whose processes have imported IMPORTED with these environment variables."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, dict(variables), clear=True):
        forkserver.ensure_running()
    return context


def places(workers: int) -> list[dict[str, str]]:
    """Return the variables by which each of these workers finds the others."""
    common = {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
    common.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    return [
        {name: str(value) for name, value in {**common, "RANK": i, "LOCAL_RANK": i}.items()}
        for i in range(workers)
    ]


def run(
    arguments: list[str],
    workers: int,
    variables: Mapping[str, str],
    more: Mapping[str, str],
    log: Path,
    timeout: float,
) -> int:
    """Run a script with its arguments in several workers.

    Returns 0, or the exit code of a worker that failed, or -1 after `timeout` seconds, when the
    workers are killed. `variables` is the environment, the same in every call; `more` is added to
    it. `log` receives the output of all workers.
    """
    context = server(frozenset(variables.items()))
    processes = [
        context.Process(
            target=_run,
            args=(
                {**variables, **more, **place},
                arguments,
                str(log),
            ),
        )
        for place in places(workers)
    ]
    log.touch()
    for process in processes:
        process.start()
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            codes = [process.exitcode for process in processes]
            failed = next((code for code in codes if code), 0)
            if failed or None not in codes:
                return failed
            time.sleep(0.02)
        return -1
    finally:
        for process in processes:
            process.kill()
            process.join()


def become(variables: dict[str, str], log: str) -> None:
    """Give a forked process its environment, and a file for what it prints."""
    die_with_parent()
    gc.freeze()  # what the server has imported: to look through it takes 0.3 s
    opened = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(opened, number)
    os.close(opened)
    os.environ.clear()
    os.environ.update(variables)


def _run(variables: dict[str, str], arguments: list[str], log: str) -> None:
    """Run a script as a newly started Python would."""
    become(variables, log)
    os.chdir(variables["PWD"])
    sys.argv[:], sys.path[0] = arguments, str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")

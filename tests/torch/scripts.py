"""Runs scripts, and the bodies of tests (workers.py), in workers that a launcher starts."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import clean_environ
from tests.torch import forked

HERE = Path(__file__).parent
_TIMEOUT = 100  # seconds


def body_of(test):
    """Return a command that runs the body of a test in a worker of torchrun."""
    return [HERE / "workers.py", test.__module__, test.__name__]


def command(*arguments, workers=2):
    """Return the command of torchrun for a script and its arguments."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(workers), *map(str, arguments)]


def environ(**more):
    own = {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    return {**clean_environ(), **own, **more}


def run(file, *arguments, workers=2, **variables):
    """Run a script in forked workers; returns their output."""
    command = [str(file), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        failed = forked.run(command, workers, environ(), variables, log, timeout=_TIMEOUT)
        said = log.read_text()
    assert not failed, said
    return said


def run_torchrun(file, *arguments, workers=2, timeout=_TIMEOUT, **variables):
    """Run a script in workers that torchrun starts, which takes longer; returns their output."""
    launched = subprocess.Popen(
        command(file, *arguments, workers=workers),
        env=environ(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    try:
        said, _ = launched.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        launched.terminate()  # torchrun ends its workers; its death would leave them alone
        said, _ = launched.communicate(timeout=_TIMEOUT)
        raise AssertionError(f"{file} took longer than {timeout} s:\n{said}") from None
    assert launched.returncode == 0, said
    return said

"""bpslaunch with a stdin, stdout or stderr that is closed, full, or no longer read."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_gc.launch import leaving
from tests.processes import clean_environ

ROOT = Path(__file__).resolve().parents[2]
FAILS = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
CLOSED = ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]


def run(redirections, *arguments, before="", **environ):
    """Run bpslaunch in a shell; returns its exit code, stdout and stderr."""
    command = shlex.join([sys.executable, str(ROOT / "bpslaunch.py"), *arguments])
    done = subprocess.run(
        ["bash", "-c", f"{before}{command} {redirections}"],
        env={**clean_environ(), "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def workers(size):
    return {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": str(size)}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("closed", CLOSED)
def test_what_is_closed_changes_no_exit_code_and_is_written_nowhere_else(closed, size):
    code, out, err = run(closed, sys.executable, "-c", FAILS, **workers(size))
    assert code == 3 and "Traceback" not in err
    assert ("out\n" in out) == (">&-" not in closed.split())
    if "2>&-" in closed:
        assert err == "" and "bpslaunch" not in out


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("arguments", [["--version"], ["--local"], []])
def test_a_command_line_is_answered_whatever_is_closed(arguments, closed):
    code, _, err = run(closed, *arguments)
    assert code == (0 if arguments == ["--version"] else 2) and "Traceback" not in err


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&1 >/dev/null | true"])
def test_an_error_that_nobody_can_read_leaves_the_exit_code(redirection):
    codes = {"before": "set -o pipefail; "}
    assert run(redirection, sys.executable, "-c", FAILS, **codes, **workers(2))[0] == 3
    assert run(redirection, **codes)[0] == 2


def test_a_full_disk_ends_the_workers_with_the_reason():
    source = "import time; print('out', flush=True); time.sleep(1000)"
    code, _, err = run(">/dev/full", sys.executable, "-c", source, **workers(2))
    reason = "bpslaunch: the output cannot be written: No space left on device\n"
    assert (code, err) == (1, reason)


def test_a_process_whose_streams_are_closed_ends_as_any_other(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    codes = []
    monkeypatch.setattr(leaving.os, "_exit", codes.append)
    leaving.die("the scheduler is gone", 5)
    assert codes == [5]

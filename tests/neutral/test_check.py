"""python -m gluon_gc check: each broken set-up has a line that names it, with a remedy."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections import namedtuple

import pytest

from gluon_gc.check import ERROR, GOOD, WARNING, machine, network, variables
from tests.processes import clean_environ


def checked(*folders, files=None, **variables):
    """Return the exit code, and the findings as dicts by what they are about."""
    path = os.pathsep.join(map(str, (*folders, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-m", "gluon_gc", "check", "--json"],
        env={**clean_environ(), **variables, "PYTHONPATH": path},
        preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert not done.stderr
    return done.returncode, {row["about"]: row for row in map(json.loads, done.stdout.splitlines())}


def installed(folder, name, version, source=None):
    """Make a folder look as if a version of a distribution was installed there."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if source is not None:
        (folder / f"{name}.py").write_text(source)
    return folder


def outward():
    """Return the name of an interface that other machines can reach; None if there is none."""
    up = network._interfaces().items()
    return next((name for name, at in up if at and not at.startswith("127.")), None)


def test_on_a_good_machine_all_lines_are_good():
    interface = outward()
    if interface is None:
        pytest.skip("this machine has no network")
    code, found = checked(GLOO_SOCKET_IFNAME=interface, BYTEPS_PARTITION_BYTES="4096000")
    assert {row["level"] for row in found.values()} == {GOOD}, found
    assert code == 0
    assert {"gluon_gc", "library", "MXNet", "machine", "open files", "ports"} <= found.keys()
    assert found["BYTEPS_PARTITION_BYTES"]["text"].startswith("4096000: largest chunk")


def test_the_report_is_one_screen_of_text():
    words = [sys.executable, "-m", "gluon_gc", "check"]
    done = subprocess.run(
        words, env={**clean_environ(), "BYTEPS_PARTITON_BYTES": "1"}, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    (mark,) = (i for i, line in enumerate(lines) if line.startswith("! BYTEPS_PARTITON_BYTES"))
    assert lines[mark + 1].strip() == "-> did you mean BYTEPS_PARTITION_BYTES?"
    assert len(lines) < 24


@pytest.mark.parametrize("variables, code", [({}, 0), ({"BYTEPS_LOG_LEVEL": "LOUD"}, 1)])
def test_a_reader_that_ends_early_leaves_the_exit_code_as_it_is(variables, code):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "gluon_gc", "check"],
        env={**clean_environ(), **variables},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


BROKEN = {
    "no library": ("library", {"GLUON_GC_LIBRARY": "/nowhere/lib.so"}, "/nowhere/lib.so does not"),
    "another library": ("library", {"GLUON_GC_LIBRARY": "libm.so.6"}, "does not exist"),
    "another MXNet": ("MXNet", ("mxnet", "2.0.0"), "2.0.0 is not 1.9.1"),
    "another NumPy": ("MXNet", ("numpy", "1.26.4"), "cannot be imported with NumPy 1.26.4"),
    "an old PyTorch": ("PyTorch", ("torch", "1.13.1"), "1.13.1 is older than 2.4"),
    "a broken PyTorch": (
        "PyTorch",
        ("torch", "2.9.0", "raise ImportError('libcudart.so.12 is missing')"),
        "2.9.0: ImportError: libcudart.so.12 is missing",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_installation_is_an_error(case, tmp_path):
    about, broken, text = BROKEN[case]
    if isinstance(broken, dict):
        code, found = checked(**broken)
    else:
        code, found = checked(installed(tmp_path, *broken))
    assert code == 1
    assert found[about]["level"] == ERROR and text in found[about]["text"], found
    assert found[about]["remedy"]


def test_an_old_obstore_is_an_error_if_the_run_needs_it(tmp_path):
    installed(tmp_path, "obstore", "0.6.0")
    for variables_, level in (({}, WARNING), ({"GLUON_GC_MAILBOX": "s3://b/run"}, ERROR)):
        _, found = checked(tmp_path, **variables_)
        assert found["mailbox"]["level"] == level
        assert found["mailbox"]["remedy"] == "pip install 'obstore>=0.11'"


def test_too_few_open_files_are_a_warning():
    _, found = checked(files=500)
    assert found["open files"]["level"] == WARNING
    assert found["open files"]["remedy"].startswith("ulimit -n 1024")


def test_a_small_shared_memory_is_a_warning(monkeypatch):
    Shared = namedtuple("Shared", "f_bavail f_frsize")
    monkeypatch.setattr(machine.os, "statvfs", lambda path: Shared(64 * 2**20 // 4096, 4096))
    *_, found = machine.findings()
    assert (found.level, found.about) == (WARNING, "/dev/shm")
    assert found.text.startswith("0.1 GiB free") and "--shm-size" in found.remedy


def of(part, about):
    """Return the finding of a part of the report about something."""
    return {finding.about: finding for finding in part.findings()}[about]


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "DMLC_INTERFACE"])
def test_an_interface_that_is_not_there_is_an_error(variable, monkeypatch):
    monkeypatch.setenv(variable, "eth77")
    found = of(network, variable)
    assert found.level == ERROR and "'eth77' is not up" in found.text and "lo" in found.remedy


def test_a_host_name_without_an_address_is_a_warning(monkeypatch):
    def unknown(name):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    found = of(network, "host name")
    assert found.level == WARNING and "GLOO_SOCKET_IFNAME" in found.remedy


def test_a_host_name_that_others_cannot_reach_is_a_warning(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    found = of(network, "host name")
    assert found.level == WARNING and "is 127.0.1.1" in found.text


def test_a_port_in_use_is_a_warning(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        found = of(network, "MASTER_PORT")
        assert found.level == WARNING and "in use" in found.text
    assert of(network, "MASTER_PORT").level == GOOD


def test_wrong_values_misspellings_and_contradictions_are_found():
    code, found = checked(
        BYTEPS_LOG_LEVEL="LOUD",
        BYTEPS_MIN_COMPRES_BYTES="1",
        BYTEPS_ENABLE_ASYNC="1",
        GLUON_GC_SECRET="moon",
    )
    assert code == 1
    assert found["BYTEPS_LOG_LEVEL"]["level"] == ERROR
    assert "LOUD" in found["BYTEPS_LOG_LEVEL"]["text"]
    assert found["BYTEPS_MIN_COMPRES_BYTES"]["remedy"] == "did you mean BYTEPS_MIN_COMPRESS_BYTES?"
    assert found["BYTEPS_ENABLE_ASYNC"]["level"] == WARNING
    assert "moon" not in json.dumps(found)


def test_an_incomplete_role_is_an_error(monkeypatch):
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.delenv("DMLC_NUM_WORKER", raising=False)
    found = of(variables, "DMLC_ROLE")
    assert found.level == ERROR and "is not set" in found.text

"""PyTorch's workers under launchers other than torchrun: bpslaunch, mpirun, SLURM's srun.

The tests do not need those launchers: each worker gets the variables that they would set.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gluon_gc.launch.scheduler import ps_lite
from tests.processes import clean_environ, free_port

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
BPSLAUNCH = [sys.executable, str(ROOT / "bpslaunch.py")]
_SUM = """
import os, sys
import torch
import gluon_gc.torch as bps
bps.init()
def total():
    one = torch.full((3,), bps.rank() + 1.0)
    return int(bps.push_pull(one, name="x", average=False)[0])
print("sum", total(), "worker", bps.rank(), "of", bps.size(), flush=True)
print("place", bps.local_rank(), "of", bps.local_size(), flush=True)
"""
# Without shutdown, PyTorch may abort when the process ends with an open process group.
SUM = f"{_SUM}bps.shutdown()"
SCRIPT = [sys.executable, "-c"]

pytestmark = pytest.mark.timeout(180)


class Processes:
    """Starts processes that end with the test, and returns their output."""

    def __init__(self):
        self.started = []

    def start(self, *command, **variables):
        process = subprocess.Popen(
            list(map(str, command)),
            env={**clean_environ(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self.started.append(process)
        return process

    def ends(self, process, code=0):
        said = process.communicate(timeout=100)[0]
        assert process.returncode == code, said
        return said


@pytest.fixture
def processes():
    all_of_them = Processes()
    yield all_of_them
    for process in all_of_them.started:
        process.kill()
        process.communicate()


def srun(rank):
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost,other[1-2]"}
    return {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}


def open_mpi(rank):
    names = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in names.items()}


def by_hand(rank):
    """Return the variables of a worker without servers that bpslaunch has not started."""
    place = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank), "DMLC_PS_ROOT_URI": "127.0.0.1"}
    return {**place, "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "0"}


@pytest.mark.parametrize(
    "launcher, port, local",
    [(srun, None, 1), (open_mpi, "MASTER_PORT", 2), (by_hand, "DMLC_PS_ROOT_PORT", 1)],
)
def test_two_workers_find_each_other_by_the_variables_of(processes, launcher, port, local):
    common = {port: str(free_port())} if port else {"SLURM_JOB_ID": str(time.time_ns() % 10**6)}
    pair = [processes.start(*SCRIPT, SUM, **{**launcher(r), **common}) for r in (0, 1)]
    for rank, process in enumerate(pair):
        said = processes.ends(process)
        assert f"sum 3 worker {rank} of 2\nplace {rank % local} of " in said


def test_a_worker_that_does_not_come_is_named(processes):
    common = {"DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_PORT": str(free_port())}
    common["GLUON_GC_CONNECT_TIMEOUT"] = "8"
    pair = [processes.start(*SCRIPT, SUM, **{**by_hand(rank), **common}) for rank in (0, 1)]
    for process in pair:
        said = processes.ends(process, code=1).splitlines()[-1]
        assert (
            said == "ConnectionError: worker 2 did not come within 8 s (GLUON_GC_CONNECT_TIMEOUT)"
        )


@pytest.mark.parametrize(
    "variables, said",
    [
        (
            open_mpi(1),
            "mpirun has started worker 1 of 2, but the address of worker 0 is not known",
        ),
        (
            {"WORLD_SIZE": "2"},
            "WORLD_SIZE is 2, but RANK is not set: a launcher sets both for each",
        ),
        ({"DMLC_NUM_WORKER": "2"}, "DMLC_NUM_WORKER is 2, but DMLC_ROLE is not set: start each"),
    ],
)
def test_a_worker_that_does_not_know_the_others_does_not_train_alone(processes, variables, said):
    last = processes.ends(processes.start(*SCRIPT, SUM, **variables), code=1).splitlines()[-1]
    assert last.startswith(f"gluon_gc.env.ConfigurationError: {said}")


def test_empty_variables_are_not_set(processes):
    empty = dict.fromkeys(["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"], "")
    said = processes.ends(processes.start(*SCRIPT, SUM, **empty))
    assert "sum 1 worker 0 of 1\nplace 0 of 1\n" in said


# bpslaunch

ROUNDS = SUM + "\nfor _ in range(3):\n    bps.init(); print('sum', total()); bps.shutdown()"
OWN_GROUP = f"import torch.distributed as dist; dist.init_process_group('gloo'){SUM}"


@pytest.mark.parametrize("options", [[], ["-s", "0"], ["-s", "2"]])
def test_a_local_job_of_pytorch_needs_no_servers_and_says_so_where_they_are_asked_for(
    processes, options
):
    """Only without MXNet; with MXNet the scheduler reports it, as in the test of a cluster."""
    command = [*BPSLAUNCH, "--local", "-n", "2", *options, *SCRIPT, ROUNDS]
    begun = time.monotonic()
    said = processes.ends(processes.start(*command))
    assert sorted(re.findall(r"sum \d+ .*|place .*", said)) == [
        "place 0 of 2",
        "place 1 of 2",
        "sum 3 worker 0 of 2",
        "sum 3 worker 1 of 2",
    ]
    assert len(re.findall(r"\] sum 3$", said, re.M)) == 6
    assert ("-s 2 is ignored" in said) == (options == ["-s", "2"] and not ps_lite.is_installed())
    assert "still running" not in said and time.monotonic() - begun < 60


def test_a_script_may_make_the_process_group_itself(processes):
    command = [*BPSLAUNCH, "--local", "-n", "2", *SCRIPT, OWN_GROUP]
    assert processes.ends(processes.start(*command)).count("sum 3 worker") == 2


def test_machines_without_servers_meet_at_worker_0(processes):
    cluster = {"DMLC_PS_ROOT_PORT": str(free_port()), "BYTEPS_LOCAL_SIZE": "2"}
    machines = [
        processes.start(*BPSLAUNCH, *SCRIPT, SUM, **{**by_hand(machine), **cluster})
        for machine in (1, 0)
    ]
    said = "".join(map(processes.ends, machines))
    for rank in range(4):
        assert f"[worker {rank}] sum 10 worker {rank} of 4" in said
        assert f"[worker {rank}] place {rank % 2} of 2" in said
    service = {**by_hand(0), **cluster, "DMLC_ROLE": "scheduler"}
    said = processes.ends(processes.start(*BPSLAUNCH, **service))
    assert said.startswith("bpslaunch: no scheduler is needed if DMLC_NUM_SERVER is 0")
    elsewhere = {**by_hand(0), **cluster, "DMLC_PS_ROOT_URI": "192.0.2.1"}
    said = processes.ends(processes.start(*BPSLAUNCH, *SCRIPT, SUM, **elsewhere), code=2)
    assert "DMLC_PS_ROOT_URI must be an address of worker 0's machine, got '192.0.2.1'" in said


DIES_ONCE = (
    _SUM
    + """
import signal, time
if os.environ["GLUON_GC_RESTARTS"] == "0":
    if bps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
if bps.rank() == 1:
    raise ValueError("no data")
time.sleep(1000)
"""
)


def test_a_cluster_restarts_after_a_death_and_names_who_has_failed(processes):
    cluster = {**by_hand(0), "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_PORT": str(free_port())}
    restarting = [*BPSLAUNCH, "--max-restarts", "1"]
    services = [
        processes.start(*restarting, **{**cluster, "DMLC_ROLE": role})
        for role in ("scheduler", "server")
    ]
    workers = [
        processes.start(*restarting, *SCRIPT, DIES_ONCE, **{**cluster, "DMLC_WORKER_ID": str(rank)})
        for rank in (0, 1)
    ]
    scheduler, server, first, second = (processes.ends(p, code=1) for p in (*services, *workers))
    needless = "the workers train with PyTorch and need no servers (DMLC_NUM_SERVER is 1)"
    assert scheduler.count(needless) == 2
    died = "worker 1 at 127.0.0.1 is gone"
    failed = "worker 1 at 127.0.0.1 has failed: ValueError: no data"
    for name, said in (("scheduler", scheduler), ("server 0", server), ("worker 0", first)):
        assert f"{name} ends: {died}" in said and f"{name} ends: {failed}" in said
    assert first.count("sum 3 worker 0 of 2") == second.count("sum 3 worker 1 of 2") == 2
    assert f"was killed by {signal.SIGKILL.name}; restart 1 of 1" in second
    assert "ValueError: no data" in second  # with its traceback

"""Determining a process's rank from the environments of all launchers, for both front ends."""

import os
import subprocess
import sys

import pytest

from gluon_gc import env
from gluon_gc.launch.rank import launchers
from gluon_gc.launch.rank.launchers import WorkerRank
from gluon_gc.mxnet.byteps import runtime
from tests.processes import clean_environ


@pytest.fixture
def environ(monkeypatch):
    """Return an environment without launchers' variables; changes to it are undone."""
    monkeypatch.setattr(os, "environ", clean_environ())
    return os.environ


def srun(rank, size, **more):
    """Return the variables that srun sets for a process of a step."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": str(size)}
    task = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)}
    machines = {"SLURM_STEP_NODELIST": "b,c", "SLURM_JOB_NODELIST": "a,b,c"}
    return {**step, **task, **machines, "SLURM_NTASKS": str(size), **more}


def sbatch(tasks):
    """Return the variables of a batch script."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": str(tasks),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "a,b,c",
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }


def salloc(tasks):
    """Return the variables of a shell that salloc starts as a step of one process."""
    step = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    return {**step, "SLURM_JOB_ID": "7", "SLURM_NTASKS": str(tasks)}


def torchrun(rank, size):
    local = {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
    rendezvous = {"MASTER_ADDR": "h", "MASTER_PORT": "5", "TORCHELASTIC_RUN_ID": "none"}
    return {"RANK": str(rank), "WORLD_SIZE": str(size), **local, **rendezvous}


def mpirun(rank, size):
    """Return Open MPI's variables, with two processes on each machine."""
    names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % 2, "LOCAL_SIZE": 2}
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in names.items()}


PMI = {"PMI_RANK": "3", "PMI_SIZE": "4"}
OF_PMI = {**PMI, "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
WORKER = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1"}
WORKER.update(DMLC_NUM_SERVER="0", DMLC_PS_ROOT_URI="r", DMLC_PS_ROOT_PORT="9")
MACHINE = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1"}
MACHINE.update(BYTEPS_LOCAL_RANK="1", BYTEPS_LOCAL_SIZE="2")
EMPTY = dict.fromkeys(["RANK", "WORLD_SIZE", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID"], "")


@pytest.mark.parametrize(
    "variables, worker",
    [
        ({}, None),
        (EMPTY, None),
        ({"WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, WorkerRank("torchrun", 1, 2)),
        (torchrun(3, 4), WorkerRank("torchrun", 3, 4, 1, 2)),
        (mpirun(3, 4), WorkerRank("mpirun", 3, 4, 1, 2)),
        (PMI, WorkerRank("mpirun", 3, 4)),
        (OF_PMI, WorkerRank("mpirun", 3, 4, 1, 2)),
        (
            {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"},
            WorkerRank("horovodrun", 1, 2, 1),
        ),
        (srun(1, 2), WorkerRank("srun", 1, 2, 0)),
        (srun(0, 1), WorkerRank("srun", 0, 1, 0)),
        (srun(1, 2, SLURM_STEP_TASKS_PER_NODE="3,1"), WorkerRank("srun", 1, 2, 0, 1)),
        (srun(1, 3, SLURM_STEP_TASKS_PER_NODE="1(x3)"), WorkerRank("srun", 1, 3, 0, 1)),
        (srun(1, 2, SLURM_STEP_TASKS_PER_NODE="many"), WorkerRank("srun", 1, 2, 0)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, WorkerRank("srun", 1, 2)),
        (
            {"SLURM_STEPID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            WorkerRank("srun", 0, 2),
        ),
        (sbatch(4), None),
        (salloc(4), WorkerRank("srun", 0, 1)),
        # If one launcher starts another, the inner one counts.
        ({**srun(1, 2), **torchrun(3, 4)}, WorkerRank("torchrun", 3, 4, 1, 2)),
        ({"PMI_RANK": "1", **torchrun(3, 4)}, WorkerRank("torchrun", 3, 4, 1, 2)),
        ({**srun(1, 2), **mpirun(3, 4)}, WorkerRank("mpirun", 3, 4, 1, 2)),
        ({**sbatch(4), **mpirun(0, 4)}, WorkerRank("mpirun", 0, 4, 0, 2)),
        # srun --mpi=pmi2 sets both. A script may set the half that SLURM does not set.
        (
            {**srun(3, 4, SLURM_STEP_TASKS_PER_NODE="1(x4)"), **PMI},
            WorkerRank("mpirun", 3, 4, 0, 1),
        ),
        ({**srun(1, 2), "WORLD_SIZE": "2"}, WorkerRank("srun", 1, 2, 0)),
        ({**srun(1, 2), "RANK": "1"}, WorkerRank("srun", 1, 2, 0)),
        ({**srun(1, 2), "RANK": "1", "WORLD_SIZE": "2"}, WorkerRank("torchrun", 1, 2, 0)),
    ],
)
def test_the_rank_is_what_the_innermost_launcher_says(environ, variables, worker):
    environ.update(variables)
    assert launchers.find() == worker


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set: a launcher sets both"),
        ({"RANK": "0"}, "RANK is 0, but WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4", **srun(1, 2)}, "WORLD_SIZE is 4, but RANK is not set"),
        ({"PMI_RANK": "1"}, "PMI_RANK is 1, but PMI_SIZE is not set"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE is 2, but OMPI_COMM_WORLD_RANK is"),
        ({"SLURM_PROCID": "1"}, "SLURM_PROCID is 1, but SLURM_NTASKS is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK must be < WORLD_SIZE \(2\), got 2"),
        (srun(2, 2), r"SLURM_PROCID must be < SLURM_STEP_NUM_TASKS \(2\), got 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a whole number >= 0, got 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE must be a positive whole number, got '0'"),
    ],
)
def test_half_of_a_rank_or_a_contradiction_is_refused(environ, variables, said):
    environ.update(variables)
    with pytest.raises(env.ConfigurationError, match=f"^{said}"):
        launchers.find()


@pytest.mark.parametrize(
    "variables, worker",
    [
        (WORKER, WorkerRank("bpslaunch", 1, 2, 0, 1)),
        ({**WORKER, **MACHINE, "DMLC_NUM_WORKER": "2"}, WorkerRank("bpslaunch", 3, 4, 1, 2)),
        (MACHINE, WorkerRank("bpslaunch", 1, 2, 1, 2)),
        (
            {**WORKER, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            WorkerRank("bpslaunch", 1, 2, 1, 2),
        ),
        ({**WORKER, **torchrun(3, 4)}, None),
        ({**WORKER, "DMLC_ROLE": ""}, None),
        ({**WORKER, "DMLC_ROLE": "server"}, None),
    ],
)
def test_dmlc_variables_are_bpslaunchs_unless_it_started_torchrun(environ, variables, worker):
    environ.update(variables)
    assert launchers.of_bpslaunch() == worker


def found(variables):
    os.environ.update(variables)
    return launchers.of_bpslaunch() or launchers.find()


ADDRESS = {"MASTER_ADDR": "h", "MASTER_PORT": "5"}
_OF_STEP, _OF_JOB = 15000 + 101 * 7 + 2, 15000 + 101 * 7


@pytest.mark.parametrize(
    "variables, address",
    [
        ({**mpirun(3, 4), **ADDRESS}, ("h", 5)),
        ({**mpirun(1, 2), "MASTER_PORT": "5"}, ("127.0.0.1", 5)),
        ({**sbatch(4), **mpirun(3, 4)}, ("a", _OF_JOB)),
        ({**srun(0, 2), **mpirun(3, 4)}, ("a", _OF_JOB)),
        (srun(1, 2), ("b", _OF_STEP)),
        ({**srun(1, 2), "SLURM_STEP_NODELIST": ""}, ("a", _OF_STEP)),
        ({**srun(1, 2), **ADDRESS}, ("h", 5)),
        ({**srun(1, 2), "MASTER_PORT": "5"}, ("b", 5)),
        (srun(0, 2, SLURM_STEP_TASKS_PER_NODE="2"), ("127.0.0.1", _OF_STEP)),
        (WORKER, ("r", 9)),
        ({**MACHINE, **ADDRESS}, ("h", 5)),
    ],
)
def test_worker_0_listens_where_variables_say(environ, variables, address):
    assert launchers.address(found(variables)) == address


@pytest.mark.parametrize(
    "variables, said",
    [
        (mpirun(1, 2), "mpirun has started worker 1 of 2"),
        ({**mpirun(3, 4), "MASTER_ADDR": "h"}, "mpirun has started worker 3 of 4"),
        ({**PMI, "MASTER_PORT": "5"}, "mpirun has started worker 3 of 4"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "srun has started worker 1 of 2"),
        (MACHINE, "bpslaunch has started worker 1 of 2"),
    ],
)
def test_an_address_that_is_not_known_is_asked_for(environ, variables, said):
    said = f"^{said}, but the address of worker 0 is not known: set MASTER_ADDR and MASTER_PORT"
    with pytest.raises(env.ConfigurationError, match=said):
        launchers.address(found(variables))


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("node[03-05,7],gpu1", "node03"),
        ("node[7,03-05]", "node7"),
        ("rack[1-2]node[3-4],x", "rack1node3"),
        ("a[1-2]-ib.example.org,b", "a1-ib.example.org"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_first_host_of_a_list_of_slurms(environ, nodes, first):
    worker = found(srun(1, 2, SLURM_STEP_NODELIST=nodes))
    assert launchers.address(worker)[0] == first


@pytest.mark.parametrize("nodes", ["node[1-2", "a,,b", "a]b", ",", "a b"])
def test_what_is_no_list_of_hosts_is_refused(environ, nodes):
    worker = found(srun(1, 2, SLURM_STEP_NODELIST=nodes))
    with pytest.raises(env.ConfigurationError, match="^SLURM_STEP_NODELIST must be a list of host"):
        launchers.address(worker)


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"DMLC_NUM_WORKER": "2"}, "DMLC_NUM_WORKER is 2, but DMLC_ROLE is not set: start each"),
        ({"DMLC_ROLE": "server"}, "DMLC_ROLE must be worker for a training script, got 'server'"),
        ({"DMLC_ROLE": "scheduler"}, "DMLC_ROLE must be worker for a training script, got"),
    ],
)
def test_a_script_does_not_train_alone_among_variables_of_a_cluster(environ, variables, said):
    environ.update(variables)
    with pytest.raises(env.ConfigurationError, match=f"^{said}"):
        launchers.require_alone()


@pytest.mark.parametrize("variables", [sbatch(4), salloc(4), {"SLURM_NTASKS": "4"}])
def test_a_script_that_srun_did_not_start_trains_alone_and_says_so(environ, logged, variables):
    environ.update(variables)
    launchers.require_alone()
    assert "SLURM has 4 tasks for this job, but this process trains alone" in logged.text


@pytest.mark.parametrize(
    "variables", [{}, sbatch(1), srun(0, 1), MACHINE, {"DMLC_NUM_WORKER": "1"}]
)
def test_who_is_alone_by_right_says_nothing(environ, logged, variables):
    environ.update(variables)
    launchers.require_alone()
    assert logged.text == ""


# MXNet


@pytest.mark.parametrize(
    "variables, said",
    [
        (torchrun(1, 2), "torchrun has started worker 1 of 2, but MXNet's workers need servers or"),
        (srun(1, 2), "srun has started worker 1 of 2, but MXNet's workers need servers or"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"DMLC_NUM_WORKER": "2"}, "DMLC_NUM_WORKER is 2, but DMLC_ROLE is not set"),
    ],
)
def test_mxnets_workers_that_no_launcher_of_theirs_started_are_refused(environ, variables, said):
    environ.update(variables)
    with pytest.raises(env.ConfigurationError, match=f"^{said}"):
        runtime.create_exchange()


@pytest.mark.parametrize(
    "variables",
    [
        EMPTY,
        sbatch(4),
        srun(0, 1),
        mpirun(0, 1),
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**srun(0, 2), **MACHINE, "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"},
    ],
)
def test_mxnets_only_worker_trains_alone(environ, variables):
    environ.update(variables)
    assert runtime.create_exchange().type == "local"


@pytest.mark.parametrize("variables", [mpirun(1, 2), PMI])
def test_a_horovod_without_mpi_is_refused_under_mpirun(variables):
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    done = subprocess.run(
        [sys.executable, "-c", "import gluon_gc as bps; bps.init()"],
        env={**clean_environ(), **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 1
    said = "but Horovod has 1: start the workers with horovodrun, or build Horovod with MPI"
    assert said in done.stderr.splitlines()[-1]

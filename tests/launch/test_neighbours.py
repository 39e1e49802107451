"""Workers of one machine without a scheduler, if one of them ends early."""

import os
import re
from pathlib import Path

import pytest

from gluon_gc.env import Cluster
from gluon_gc.launch.machine import _address
from tests.mxnet.cluster.cluster import last_line

WORKERS = 3
STEPS = "print('begun', flush=True)\nwhile True: exchange()"


def _start(nodes, rank, script, **variables):
    nodes.environment.pop("BYTEPS_FORCE_DISTRIBUTED", None)
    place = {"BYTEPS_LOCAL_RANK": rank, "BYTEPS_LOCAL_SIZE": WORKERS, "DMLC_NUM_WORKER": 1}
    nodes.start_script(rank, script, **{**place, "DMLC_WORKER_ID": 0, **variables})


def _all_say(nodes, words, ranks):
    for rank in ranks:
        assert nodes.wait(f"worker{rank}") == 1
        assert last_line(nodes.log(f"worker{rank}")) == f"gluon_gc: worker {rank} ends: {words}"


@pytest.mark.parametrize("killed", range(WORKERS))
def test_one_who_is_killed_is_named_by_all_others(cluster, killed):
    nodes = cluster(1, 0)
    for rank in range(WORKERS):
        _start(nodes, rank, STEPS)
    for rank in range(WORKERS):
        nodes.wait_for_line(f"worker{rank}", "begun")
    nodes.processes[f"worker{killed}"].kill()
    _all_say(nodes, f"worker {killed} is gone", {*range(WORKERS)} - {killed})


@pytest.mark.parametrize("failing", [0, 2])
def test_one_that_fails_is_named_with_its_error(cluster, failing):
    nodes = cluster(1, 0)
    for rank in range(WORKERS):
        _start(nodes, rank, "exchange()\nraise ValueError('no data')" if rank == failing else STEPS)
    others = {*range(WORKERS)} - {failing}
    _all_say(nodes, f"worker {failing} has failed: ValueError: no data", others)
    assert nodes.wait(f"worker{failing}") == 1


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("next_call", ["exchange()", "bps.barrier()"])
def test_one_that_ends_before_the_others_is_named_by_all(cluster, leaver, next_call):
    nodes = cluster(1, 0)
    steps = f"exchange()\nwhile True: {next_call}"
    for rank in range(WORKERS):
        _start(nodes, rank, "exchange()" if rank == leaver else steps)
    for rank in range(WORKERS):
        assert nodes.wait(f"worker{rank}") == 1
        said = (
            rf"worker {rank} ends: worker {leaver} has left after \d+ exchanges, but worker \d has"
        )
        assert re.search(said, last_line(nodes.log(f"worker{rank}"))), nodes.logs()


def test_scripts_that_end_alike_end_well_though_one_comes_late(cluster, tmp_path):
    nodes = cluster(1, 0)
    late = f"import time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.02)\n"
    for rank in range(WORKERS):
        ready = f"open('{tmp_path}/there{rank}', 'w')\n"
        _start(nodes, rank, f"exchange()\n{ready}{late if rank == 1 else ''}")
    for rank in range(WORKERS):
        nodes.wait_for(tmp_path / f"there{rank}")
    (tmp_path / "go").touch()
    for rank in range(WORKERS):
        assert nodes.wait(f"worker{rank}") == 0
        assert nodes.log(f"worker{rank}") == ""


def test_those_who_do_not_come_are_named(cluster):
    nodes = cluster(1, 0)
    for rank in (0, 2):
        _start(nodes, rank, STEPS, GLUON_GC_CONNECT_TIMEOUT=5)
    assert nodes.wait("worker0") == 1
    assert "workers with BYTEPS_LOCAL_RANK 1 did not connect" in last_line(nodes.log("worker0"))
    assert nodes.wait("worker2") == 1


def test_nothing_is_left_where_all_are_killed_and_the_next_run_can_begin(cluster):
    nodes = cluster(1, 0)
    port = int(nodes.environment["DMLC_PS_ROOT_PORT"])
    address = _address(Cluster("worker", "127.0.0.1", port, 1, 1, 0)).decode().strip("\0")
    for script in (STEPS, "exchange()\nbps.shutdown()"):
        for rank in range(WORKERS):
            _start(nodes, rank, script)
        if script is STEPS:
            for rank in range(WORKERS):
                nodes.wait_for_line(f"worker{rank}", "begun")
            for rank in range(WORKERS):
                nodes.processes[f"worker{rank}"].kill()
            for rank in range(WORKERS):
                nodes.processes[f"worker{rank}"].wait()
            assert not [name for name in os.listdir("/dev/shm") if "gluon_gc" in name]
            assert address not in Path("/proc/net/unix").read_text()
    for rank in range(WORKERS):
        assert nodes.wait(f"worker{rank}") == 0

"""A restarted node: which cluster it joins, and which it leaves alone."""

import re
import signal

import pytest

from gluon_gc.launch.cli.tasks import service
from gluon_gc.launch.leaving import ALONE
from tests.mxnet.cluster.cluster import last_line, launch
from tests.mxnet.cluster.jobs import forever


def test_a_node_that_comes_back_waits_for_the_next_scheduler_and_disturbs_no_other(cluster):
    nodes = cluster(1, 1)
    nodes.start_roles()
    nodes.start_worker(0, forever, {"folder": str(nodes.folder)})
    nodes.wait_for(nodes.folder / "running0")
    back = {"GLUON_GC_RESTARTS": 1, "GLUON_GC_CONNECT_TIMEOUT": 2}
    nodes.start("back", service("server"), **back)
    assert nodes.wait("back") == ALONE
    assert nodes.ended() == ["back"]
    nodes.start("waiting", service("server"), GLUON_GC_RESTARTS=1, DMLC_NUM_SERVER=2)
    nodes.processes["scheduler"].kill()
    for name in ("server0", "worker0"):
        assert nodes.wait(name) == 1
    nodes.environment.update(DMLC_NUM_SERVER="2", GLUON_GC_RESTARTS="1")
    nodes.start("scheduler", service("scheduler"))
    nodes.start("server1", service("server"))
    nodes.start_script(0, "exchange()")
    for name in ("waiting", "server1", "worker0", "scheduler"):
        assert nodes.wait(name) == 0, nodes.log(name)


def test_who_does_not_come_back_is_named_to_those_who_do(cluster):
    nodes = cluster(2, 1, GLUON_GC_RESTARTS=1, GLUON_GC_CONNECT_TIMEOUT=12)
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    for name in ("scheduler", "server0", "worker0"):
        assert nodes.wait(name) == ALONE
        assert "worker 1 did not come back within 12 s" in last_line(nodes.log(name))


def test_a_scheduler_that_ends_and_restarts_is_met_again_by_those_who_waited(cluster):
    nodes = cluster(2, 1, GLUON_GC_RESTARTS=0, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    for name in ("worker 0", "server 0"):
        nodes.wait_for_line("scheduler", f"{name} has come")
    nodes.processes["scheduler"].send_signal(signal.SIGKILL)
    nodes.wait("scheduler")
    nodes.start("scheduler", service("scheduler"), GLUON_GC_RESTARTS=1)
    nodes.start_script(1, "exchange()")
    nodes.wait_for_end()


def test_a_scheduler_that_restarts_does_not_stay_for_those_who_come_late(cluster):
    nodes = cluster(1, 1, GLUON_GC_RESTARTS=0, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.wait_for_line("scheduler", "server 0 has come")
    nodes.processes["server0"].kill()
    assert nodes.wait("scheduler", timeout=30) == 1  # GLUON_GC_CONNECT_TIMEOUT is 60
    assert re.search("server 0.* is gone", last_line(nodes.log("scheduler")))


def test_horovods_workers_are_started_again():
    pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    script = (
        "import os, gluon_gc as bps\n"
        "bps.init()\n"
        "if os.environ['GLUON_GC_RESTARTS'] == '0' and bps.rank() == 1: os._exit(3)\n"
        "print('the sum is', bps.allreduce(bps.rank() + 1, average=False))\n"
        "bps.shutdown()"
    )
    said = launch(script, "--local", "-n", "2", "--backend", "horovod", "--max-restarts", "1")
    assert "; restart 1 of 1" in "".join(said)
    assert "".join(said).count("the sum is 3") == 2

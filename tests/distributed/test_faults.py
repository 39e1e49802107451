"""What a user sees when the cluster is not as it should be."""

import re
import sys

import pytest

from gluon_gc.launcher import service
from tests.distributed.cluster import Cluster

STOCK_SERVER = [sys.executable, "-c", "import mxnet"]


@pytest.fixture
def cluster(tmp_path):
    clusters = []

    def make(workers, servers, **variables):
        clusters.append(Cluster(tmp_path, workers, servers, **variables))
        return clusters[-1]

    yield make
    for made in clusters:
        made.stop()


def last_line(text):
    return text.strip().splitlines()[-1]


def test_an_unreachable_scheduler_is_named_with_its_address(cluster):
    nodes = cluster(1, 1, GLUON_GC_CONNECT_TIMEOUT=1)
    nodes.start_worker(0, "push_pull")
    assert nodes.wait("worker0") == 1
    port = nodes.environment["DMLC_PS_ROOT_PORT"]
    assert re.search(
        rf"ConnectionError: no scheduler at 127.0.0.1:{port} within 1 s",
        last_line(nodes.log("worker0")),
    )


def test_a_missing_variable_is_named(cluster):
    nodes = cluster(2, 1)
    del nodes.environment["DMLC_PS_ROOT_URI"]
    nodes.start_worker(0, "push_pull")
    assert nodes.wait("worker0") == 1
    assert "DMLC_PS_ROOT_URI is not set" in last_line(nodes.log("worker0"))


def test_a_stock_mxnet_server_is_recognised(cluster):
    nodes = cluster(1, 1)
    nodes.start("scheduler", service("scheduler"))
    nodes.start("server0", STOCK_SERVER, DMLC_ROLE="server")
    nodes.start_worker(0, "push_pull")
    assert nodes.wait("worker0") == 1
    assert "a node at 127.0.0.1 is not gluon_gc's but MXNet's own" in last_line(
        nodes.log("worker0")
    )


def test_a_stock_mxnet_scheduler_is_recognised(cluster):
    nodes = cluster(1, 1)
    nodes.start("scheduler", STOCK_SERVER, DMLC_ROLE="scheduler")
    nodes.start_worker(0, "push_pull")
    assert nodes.wait("worker0") == 1
    assert "is not gluon_gc's but MXNet's own; start it" in last_line(nodes.log("worker0"))


def test_a_scheduler_that_leaves_before_all_are_there_is_named(cluster):
    nodes = cluster(2, 1, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.start_worker(0, "push_pull")
    for name in ("worker 0", "server 0"):
        nodes.wait_for_line("scheduler", f"{name} has come")
    nodes.processes["scheduler"].kill()
    for name in ("worker0", "server0"):
        assert nodes.wait(name) == 1
        assert "left before all nodes were there" in last_line(nodes.log(name))


@pytest.mark.parametrize(
    "workers, second, said",
    [
        (3, {"DMLC_WORKER_ID": 0}, "worker 0 came twice"),
        (2, {"BYTEPS_LOCAL_SIZE": 2}, "all machines must have as many"),
    ],
    ids=["two workers with one number", "machines with different numbers of workers"],
)
def test_nodes_that_make_no_cluster_are_named_to_all(cluster, workers, second, said):
    nodes = cluster(workers, 1)
    nodes.start_roles()
    nodes.start_worker(0, "push_pull")
    nodes.start_worker(1, "push_pull", **second)
    for name in ("worker0", "worker1", "server0", "scheduler"):
        assert nodes.wait(name) == 1
        assert said in last_line(nodes.log(name))


@pytest.mark.parametrize(
    "variable, value",
    [
        ("BYTEPS_PARTITION_BYTES", 1000),
        ("BYTEPS_MIN_COMPRESS_BYTES", 64),
    ],
)
def test_a_worker_with_other_settings_is_named_to_all(cluster, variable, value):
    nodes = cluster(2, 2)
    nodes.start_roles()
    nodes.start_worker(0, "push_pull")
    nodes.start_worker(1, "push_pull", **{variable: value})
    for name in ("worker0", "worker1"):
        assert nodes.wait(name) == 1
        assert re.search(
            rf"worker \d has {variable} \d+, but worker \d has", last_line(nodes.log(name))
        )


@pytest.mark.parametrize(
    "change, named",
    [
        ({"compression_params": {"compressor": "onebit"}}, "compression_params"),
        ({"optimizer_params": {"learning_rate": 0.1, "momentum": 0.5}}, "compression_params"),
        ({"shapes": [[41], [7]]}, "parameters to broadcast"),
    ],
)
def test_a_worker_with_another_trainer_is_named_to_all(cluster, change, named):
    arguments = {
        "shapes": [[40], [7]],
        "steps": 1,
        "compression_params": {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov"},
        "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
    }
    nodes = cluster(2, 1)
    nodes.start_roles()
    nodes.start_worker(0, "steps", arguments)
    nodes.start_worker(1, "steps", {**arguments, **change})
    for name in ("worker0", "worker1"):
        assert nodes.wait(name) == 1
        assert re.search(
            rf"worker \d has {named} .*, but worker \d has", last_line(nodes.log(name))
        )


def test_another_version_of_gluon_gc_is_refused(cluster):
    nodes = cluster(1, 1)
    nodes.start_roles()
    code = (
        "import gluon_gc as bps, mxnet as mx; bps.kvstore.handshake.__version__ = '9.9.9'; "
        "bps.init(); bps.byteps_push_pull(mx.nd.ones(1), name='x')"
    )
    nodes.start("worker0", [sys.executable, "-c", code], DMLC_ROLE="worker", DMLC_WORKER_ID=0)
    assert nodes.wait("worker0") == 1
    assert "worker 0 runs gluon_gc 9.9.9, the server" in last_line(nodes.log("worker0"))


def test_a_server_refuses_a_pickled_optimizer_and_goes_on(cluster):
    nodes = cluster(1, 1)
    nodes.start_roles()
    nodes.start_worker(0, "stock_worker")
    nodes.results()
    assert "refused a command that is not gluon_gc's" in nodes.log("server0")


def test_a_server_that_dies_is_named_and_everybody_ends(cluster):
    nodes = cluster(2, 2, PS_HEARTBEAT_TIMEOUT=3)
    nodes.start_roles()
    for rank in range(2):
        nodes.start_worker(rank, "forever", {"folder": str(nodes.folder)})
    for rank in range(2):
        nodes.wait_for(nodes.folder / f"running{rank}")
    nodes.processes["server0"].kill()
    assert nodes.wait("scheduler", 30) == 1
    assert re.search(
        r"scheduler: no heartbeat for 3 s from server \d", last_line(nodes.log("scheduler"))
    )
    for name in ("worker0", "worker1", "server1"):
        assert nodes.wait(name, 30) == 1
        assert "the scheduler" in last_line(nodes.log(name))


def test_a_worker_that_fails_does_not_leave_the_others_waiting(cluster):
    nodes = cluster(2, 1, PS_HEARTBEAT_TIMEOUT=3)
    nodes.start_roles()
    for rank in range(2):
        nodes.start_worker(rank, "exit_code", {"failing": 1})
    assert nodes.wait("worker1", 30) == 1
    assert "RuntimeError: this worker fails on purpose" in last_line(nodes.log("worker1"))
    assert nodes.wait("worker0", 30) == 1
    assert "the scheduler" in last_line(nodes.log("worker0"))

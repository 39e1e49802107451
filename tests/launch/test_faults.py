"""The errors that a user sees if the cluster is misconfigured."""

import re
import sys

import mxnet as mx
import pytest

from gluon_gc.mxnet.byteps.runtime import default_exchange
from tests.mxnet.cluster.cluster import last_line
from tests.mxnet.exchange.test_two_way import steps

STOCK_SERVER = [sys.executable, "-c", "import mxnet"]


def test_an_unreachable_scheduler_is_named_with_its_address(cluster):
    nodes = cluster(1, 1, GLUON_GC_CONNECT_TIMEOUT=1)
    nodes.start_script(0, "exchange()")
    assert nodes.wait("worker0") == 1
    port = nodes.environment["DMLC_PS_ROOT_PORT"]
    assert re.search(
        rf"ConnectionError: no scheduler at 127.0.0.1:{port} within 1 s",
        last_line(nodes.log("worker0")),
    )


def test_a_missing_variable_is_named(cluster):
    nodes = cluster(2, 1)
    del nodes.environment["DMLC_PS_ROOT_URI"]
    nodes.start_script(0, "exchange()")
    assert nodes.wait("worker0") == 1
    assert "DMLC_PS_ROOT_URI is not set" in last_line(nodes.log("worker0"))


def test_a_stock_mxnet_scheduler_is_recognised(cluster):
    nodes = cluster(1, 1)
    nodes.start("scheduler", STOCK_SERVER, DMLC_ROLE="scheduler")
    nodes.start_script(0, "exchange()")
    assert nodes.wait("worker0") == 1
    said = "or it is MXNet's own scheduler, not gluon_gc's"
    assert said in last_line(nodes.log("worker0"))


def test_a_scheduler_that_leaves_before_all_are_there_is_named(cluster):
    nodes = cluster(2, 1, BYTEPS_LOG_LEVEL="INFO")
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    for name in ("worker 0", "server 0"):
        nodes.wait_for_line("scheduler", f"{name} has come")
    nodes.processes["scheduler"].kill()
    for name in ("worker0", "server0"):
        assert nodes.wait(name) == 1
        assert "ended before all nodes had joined" in last_line(nodes.log(name))


@pytest.mark.parametrize(
    "variable, value",
    [("BYTEPS_PARTITION_BYTES", 1000), ("BYTEPS_MIN_COMPRESS_BYTES", 64)],
)
def test_a_worker_with_other_settings_is_named_to_all(cluster, variable, value):
    nodes = cluster(2, 2)
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    nodes.start_script(1, "exchange()", **{variable: value})
    for name in ("worker0", "worker1"):
        assert nodes.wait(name) == 1
        assert re.search(
            rf"worker \d has {variable} \d+, but worker \d has", last_line(nodes.log(name))
        )


def test_a_worker_with_another_trainer_is_named_to_all(cluster):
    job = {"steps": 1, "compression_params": None, "optimizer_params": {"learning_rate": 0.1}}
    nodes = cluster(2, 1)
    nodes.start_roles()
    for rank in range(2):
        nodes.start_worker(rank, steps, {**job, "shapes": [[40 + rank], [7]]})
    for name in ("worker0", "worker1"):
        assert nodes.wait(name) == 1
        said = "worker 1 has shape [41] for parameter p0, but worker 0 has [40]"
        assert last_line(nodes.log(name)).endswith(said)


def test_workers_whose_learning_rates_drift_apart_end_where_feedback_follows_them(cluster):
    arguments = {
        "shapes": [[40, 30], [7]],
        "steps": 4,
        "compression_params": {"compressor": "onebit", "ef": "corrected"},
        "optimizer_params": {"learning_rate": 0.5},
    }
    nodes = cluster(2, 1)
    nodes.start_roles()
    for rank, last in enumerate([0.25, 0.125]):
        nodes.start_worker(rank, steps, {**arguments, "learning_rates": [0.5, 0.5, last, last]})
    for name in ("worker0", "worker1"):
        assert nodes.wait(name) == 1
        said = r"server 0 at 127.0.0.1 has failed: key \d+: .*the learning rates of workers differ"
        assert re.search(said, last_line(nodes.log(name))), nodes.log(name)


def stock_worker():
    """Send a gluon_gc server the command of MXNet's KVStore.set_optimizer."""
    default_exchange()._kv.set_optimizer(mx.optimizer.SGD())


def test_a_server_refuses_a_pickled_optimizer_and_goes_on(cluster):
    nodes = cluster(1, 1)
    nodes.start_roles()
    nodes.start_worker(0, stock_worker)
    nodes.wait_for_end()
    assert "refused a command that is not gluon_gc's" in nodes.log("server0")

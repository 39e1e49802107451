"""A bad network, simulated with namespaces, costs time but changes no bit of a result."""

import re

import pytest

from tests.mxnet.cluster.cluster import last_line
from tests.mxnet.cluster.hosts import Hosts, needs_namespaces
from tests.mxnet.cluster.jobs import until_told
from tests.mxnet.cluster.standing import run
from tests.mxnet.exchange.test_two_way import assert_equal

pytestmark = [needs_namespaces, pytest.mark.timeout(400)]
ROUNDS = 30
DOWN_SECONDS = 6


def _is_as_without_disturbance(results):
    """Check all gradients and the final weights, bit for bit."""
    (steps,) = {result["steps"] for result in results}
    for result, undisturbed in zip(results, run(until_told, {"last": steps}, servers=2)):
        assert_equal(result, undisturbed)


def test_a_slow_link_lost_packets_and_a_link_down_for_a_while_cost_only_time(tmp_path):
    with Hosts(tmp_path, 2, 2) as nodes:
        network, worker, server = nodes.network, nodes.hosts["worker1"], nodes.hosts["server0"]
        nodes.train()
        network.shape(worker, 10e6)
        nodes.wait_for_steps(20)
        for host in nodes.hosts.values():
            network.lose(host, 0.02)
        nodes.wait_for_steps(30)
        assert sum(map(network.lost, nodes.hosts.values())) > 0
        for host in (worker, server):
            network.link_down(host)
            nodes.pass_time(DOWN_SECONDS)
            network.link_up(host)
            nodes.wait_for_steps(5)
        _is_as_without_disturbance(nodes.finish())


def test_connections_that_are_reset_again_and_again_cost_only_time(tmp_path):
    with Hosts(tmp_path, 2, 2, PS_RESEND=1, PS_RESEND_TIMEOUT=1000) as nodes:
        nodes.train()
        for number in range(ROUNDS):
            nodes.network.reset(number % len(nodes.hosts))
            nodes.wait_for_steps(1)
        _is_as_without_disturbance(nodes.finish())


@pytest.mark.parametrize("cut_off", ["worker 1", "server 0", "scheduler"])
def test_a_node_whose_link_stays_down_is_named(tmp_path, cut_off):
    named = f"no heartbeat for 5 s from {cut_off}"
    alone = f"{cut_off} ends: (no heartbeat for 5 s from the scheduler|the scheduler is gone)"
    if cut_off == "scheduler":
        named = "(no heartbeat for 5 s from the scheduler|the scheduler is gone)"
        alone = r"no heartbeat for 5 s from .*\d, .*\d, .*\d: the scheduler's machine is cut off"
    with Hosts(tmp_path, 2, 1, PS_HEARTBEAT_TIMEOUT=5) as nodes:
        nodes.train()
        name = cut_off.replace(" ", "")
        nodes.network.link_down(nodes.hosts[name])
        for process in nodes.processes:
            assert nodes.wait(process, 30) == 1
            said = alone if process == name else named
            assert re.search(said, last_line(nodes.log(process))), nodes.logs()

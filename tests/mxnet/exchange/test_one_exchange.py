"""The workers of a machine sum gradients in shared memory, so there is one exchange per machine."""

import numpy as np
import pytest

from tests.mxnet.cluster.cluster import start_forked_horovod
from tests.mxnet.cluster.jobs import forever, gradients_of, ranks
from tests.mxnet.cluster.standing import run, run_horovod, run_machine
from tests.mxnet.exchange.test_horovod import in_another_order
from tests.mxnet.exchange.test_two_way import (
    CHUNK,
    PARTITION,
    arguments,
    assert_equal,
    check_replay,
    corrected,
    steps,
)

LOCAL_SIZE = 2
MACHINES = {"BYTEPS_LOCAL_SIZE": LOCAL_SIZE}


def on_machines(job, options, **variables):
    """Run a job on two machines with two workers each."""
    return run(job, options, 4, 1, {**MACHINES, **variables})


def on_nodes(job, options, **variables):
    """Run a job as `on_machines` does, over Horovod."""
    return run_horovod(job, options, 4, {**MACHINES, **variables})


@corrected()
@pytest.mark.parametrize("start", [on_machines, run_machine])
def test_a_machines_sum_is_compressed_as_one_workers_gradient_is(start, options):
    check_replay(start(steps, options), options, local_size=LOCAL_SIZE)


@corrected(steps=5)
def test_chunks_of_four_owners_and_two_servers_agree_with_a_numpy_replay(options):
    results = run(steps, options, 8, 2, {**PARTITION, "BYTEPS_LOCAL_SIZE": 4})
    check_replay(results, options, CHUNK, local_size=4)


@corrected(steps=5)
def test_chunks_of_nodes_agree_with_a_numpy_replay(options):
    check_replay(on_nodes(steps, options, **PARTITION), options, CHUNK, LOCAL_SIZE)


@corrected(["onebit", "randomk"], steps=5)
def test_nodes_and_machines_with_a_server_give_the_same_bits(options):
    assert_equal(on_nodes(steps, options)[0], on_machines(steps, options)[0])


def test_a_worker_may_own_nothing():
    options = arguments("onebit", shapes=[(5,)], steps=2)
    check_replay(on_nodes(steps, options), options, local_size=LOCAL_SIZE)


def test_all_payloads_of_nodes_may_come_to_all():
    exact = {"compressor": "topk", "k": 10**6, "ef": "vanilla", "momentum": "nesterov"}
    gathered, two_way = (
        on_nodes(steps, arguments(steps=5, compression_params={**exact, "exchange": exchange}))[0]
        for exchange in ("gather", "two_way")
    )
    for key in two_way:
        np.testing.assert_allclose(gathered[key], two_way[key], rtol=1e-5, atol=1e-6)


def test_gradients_may_become_ready_in_another_order_on_each_worker(tmp_path):
    options = {"folder": str(tmp_path), "size": 1000}
    given = [gradients_of(rank, 0, [1000] * 2) for rank in range(4)]
    for result in on_nodes(in_another_order, options):
        for i, (first, second, third, fourth) in enumerate(zip(*given)):
            total = (first + second) + (third + fourth)
            np.testing.assert_array_equal(result[f"t{i}"], total)


@pytest.mark.parametrize("killed", [0, 3])
def test_when_a_worker_of_a_node_dies_the_others_end_with_a_message(tmp_path, killed):
    job = {"folder": str(tmp_path), "compressor": "onebit"}
    with start_forked_horovod(tmp_path, forever, job, 4, MACHINES) as cluster:
        for rank in range(4):
            cluster.wait_for(tmp_path / f"running{rank}")
        cluster.processes[f"worker{killed}"].kill()
        for rank in set(range(4)) - {killed}:
            assert cluster.wait(f"worker{rank}", timeout=60) != 0
            assert "Horovod background loop uncaught exception" in cluster.log(f"worker{rank}")


TWO_HOSTS = "localhost:2,127.0.0.1:2"


def test_horovods_list_of_hosts_says_which_workers_are_on_a_node(tmp_path):
    with start_forked_horovod(tmp_path, ranks, None, 4, hosts=TWO_HOSTS) as cluster:
        assert cluster.results() == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


ON_SEVERAL = "BYTEPS_LOCAL_SIZE is 4, but the workers of ranks [0, 1, 2, 3] are on several hosts"


@pytest.mark.parametrize(
    "workers, hosts, local_size, said",
    [
        (3, None, 2, "BYTEPS_LOCAL_SIZE must divide the 3 workers, got 2"),
        (4, TWO_HOSTS, 4, ON_SEVERAL),
    ],
)
def test_nodes_that_cannot_be_are_refused(tmp_path, workers, hosts, local_size, said):
    variables = {"BYTEPS_LOCAL_SIZE": local_size}
    with start_forked_horovod(tmp_path, ranks, None, workers, variables, hosts) as cluster:
        for rank in range(workers):
            assert cluster.wait(f"worker{rank}") != 0
            assert said in cluster.log(f"worker{rank}")

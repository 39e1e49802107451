"""The workers of a node sum gradients in shared memory before they use Horovod."""

import numpy as np
import pytest

from tests.mxnet.cluster.forked_horovod import start_forked_horovod
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.standing import run, run_horovod
from tests.mxnet.exchange.test_one_exchange import check_averages, uncompressed
from tests.mxnet.exchange.test_two_way import (
    arguments,
    assert_identical,
    check_replay,
    corrected,
    of_way,
)

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
LOCAL_SIZE = 2
NODES = {"BYTEPS_LOCAL_SIZE": LOCAL_SIZE}


def _check(ways, chunk_elements=10**9, **variables):
    results = run_horovod("several_steps", ways, 2 * LOCAL_SIZE, {**NODES, **variables})
    assert_identical(results)
    for way, options in enumerate(ways):
        of_this = [of_way(result, way) for result in results]
        check_replay(of_this, options, chunk_elements, LOCAL_SIZE)


def test_a_nodes_sum_is_compressed_as_one_workers_gradient_is():
    _check(corrected() + [arguments(dtype=dtype, steps=5) for dtype in ("float16", "float64")])


def test_a_parameter_server_gives_the_same_bits():
    ways = corrected(steps=5)
    over_horovod = run_horovod("several_steps", ways, 2 * LOCAL_SIZE, NODES)
    over_a_server = run("several_steps", ways, 2 * LOCAL_SIZE, 1, NODES)
    for way in range(len(ways)):
        expected = of_way(over_a_server[0], way)
        result = of_way(over_horovod[0], way)
        assert set(result) == set(expected)
        for key in set(expected) - {"row"}:
            np.testing.assert_array_equal(result[key], expected[key], err_msg=f"{key} of {way}")


def test_chunks_of_four_owners_agree_with_a_numpy_replay():
    _check(corrected(steps=5), chunk_elements=300, BYTEPS_PARTITION_BYTES=1200)


def test_what_is_not_compressed_is_summed_on_the_node_too():
    ways = uncompressed()
    check_averages(run_horovod("several_steps", ways, 2 * LOCAL_SIZE, NODES), ways)


def test_a_worker_may_own_nothing():
    _check([arguments("onebit", shapes=[(5,)], steps=2)])


def test_all_payloads_of_nodes_may_come_to_all():
    exact = {"compressor": "topk", "k": 10**6, "ef": "vanilla", "momentum": "nesterov"}
    ways = [
        arguments(steps=5, compression_params={**exact, "exchange": exchange})
        for exchange in ("two_way", "gather")
    ]
    ways += [arguments("dithering", steps=5), arguments("bytegrad", steps=5)]
    for way in ways[2:]:
        way["compression_params"]["exchange"] = "gather"
    results = run_horovod("several_steps", ways, 2 * LOCAL_SIZE, NODES)
    assert_identical(results)
    two_way, gathered = (of_way(results[0], way) for way in range(2))
    for key in two_way:
        np.testing.assert_allclose(gathered[key], two_way[key], rtol=1e-5, atol=1e-6)


def test_gradients_may_become_ready_in_another_order_on_each_worker(tmp_path):
    params = {"compressor": "topk", "k": 10**6}
    options = {"folder": str(tmp_path), "size": 1000, "compression_params": params}
    results = run_horovod("in_another_order", options, 2 * LOCAL_SIZE, NODES)
    given = [gradients_of(rank, 0, [1000] * 2) for rank in range(2 * LOCAL_SIZE)]
    for result in results:
        for i, (first, second, third, fourth) in enumerate(zip(*given)):
            total = (first + second) + (third + fourth)
            np.testing.assert_array_equal(result[f"t{i}"], total)


@pytest.mark.parametrize("killed", [0, 3])
def test_when_a_worker_dies_the_others_end_with_a_message(tmp_path, killed):
    job = {"folder": str(tmp_path), "compression_params": {"compressor": "onebit"}}
    with start_forked_horovod(tmp_path, "forever", job, 2 * LOCAL_SIZE, NODES) as cluster:
        for rank in range(2 * LOCAL_SIZE):
            cluster.wait_for(tmp_path / f"running{rank}")
        cluster.processes[f"worker{killed}"].kill()
        for rank in set(range(2 * LOCAL_SIZE)) - {killed}:
            assert cluster.wait(f"worker{rank}", timeout=60) != 0
            assert "Horovod background loop uncaught exception" in cluster.log(f"worker{rank}")


def test_horovods_list_of_hosts_says_which_workers_are_on_a_node(tmp_path):
    hosts = "localhost:2,127.0.0.1:2"
    with start_forked_horovod(tmp_path, "place", None, 4, hosts=hosts) as cluster:
        results = cluster.results()
    places = [(int(r["rank"]), int(r["local_rank"]), int(r["local_size"])) for r in results]
    assert places == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


@pytest.mark.parametrize(
    "workers, hosts, local_size, said",
    [
        (3, None, 2, "BYTEPS_LOCAL_SIZE must divide the 3 workers, got 2"),
        (
            4,
            "localhost:2,127.0.0.1:2",
            4,
            "BYTEPS_LOCAL_SIZE is 4, but the workers of ranks [0, 1, 2, 3] are on several hosts",
        ),
    ],
)
def test_nodes_that_cannot_be_are_refused(tmp_path, workers, hosts, local_size, said):
    variables = {"BYTEPS_LOCAL_SIZE": local_size}
    with start_forked_horovod(tmp_path, "place", None, workers, variables, hosts) as cluster:
        for rank in range(workers):
            assert cluster.wait(f"worker{rank}") != 0
            assert said in cluster.log(f"worker{rank}")

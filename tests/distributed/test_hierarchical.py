"""Gradients that are summed within each node first, over Horovod."""

import numpy as np
import pytest

from tests.distributed.cluster import start_horovod
from tests.distributed.jobs import gradients_of
from tests.distributed.standing import run_horovod
from tests.distributed.test_two_way import SHAPES, arguments, assert_identical, corrected, of_way

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
TWO_BY_TWO = {"BYTEPS_LOCAL_SIZE": 2}


def test_two_nodes_of_two_get_what_four_workers_get_if_compression_is_exact():
    exact = {"compressor": "topk", "k": 10**6, "ef": "vanilla", "momentum": "nesterov"}
    ways = [
        arguments(steps=5, compression_params={**exact, "hierarchical": True, "exchange": exchange})
        for exchange in ("two_way", "gather")
    ]
    results = run_horovod("several_steps", ways, 4, TWO_BY_TWO)
    assert_identical(results)
    (flat, *_) = run_horovod("several_steps", ways, 4)
    for key in flat:
        if not key.endswith("row"):
            np.testing.assert_allclose(results[0][key], flat[key], rtol=1e-5, atol=1e-6)


def test_every_compressor_ends_alike_on_all_workers():
    ways = corrected(steps=3)
    for way in ways:
        way["compression_params"]["hierarchical"] = True
    results = run_horovod("several_steps", ways, 4, {**TWO_BY_TWO, "BYTEPS_PARTITION_BYTES": 1200})
    assert_identical(results)


def test_only_a_nodes_sum_is_compressed():
    """bytegrad's error is within a step of the levels, an element and way, of two nodes."""
    options = arguments("bytegrad", None, None, steps=1, batch_size=1)
    results = run_horovod("several_steps", [options], 4, TWO_BY_TWO)
    assert_identical(results)
    for i, shape in enumerate(SHAPES):
        gradients = [gradients_of(rank, 0, SHAPES)[i] / 4 for rank in range(4)]
        nodes = [gradients[0] + gradients[1], gradients[2] + gradients[3]]
        total = nodes[0] + nodes[1]
        step = sum(np.ptp(array) for array in (*nodes, total)) / 255
        error = np.abs(of_way(results[0], 0)[f"g{i}_0"].reshape(shape) - total).max()
        assert error <= step + 1e-6


def test_horovods_list_of_hosts_says_which_workers_are_on_a_node(tmp_path):
    hosts = "localhost:2,127.0.0.1:2"
    with start_horovod(tmp_path, "place", None, 4, hosts=hosts) as cluster:
        results = cluster.results()
    places = [(int(r["rank"]), int(r["local_rank"]), int(r["local_size"])) for r in results]
    assert places == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


def test_nodes_of_different_sizes_are_refused(tmp_path):
    cluster = start_horovod(tmp_path, "place", None, 3, TWO_BY_TWO)
    try:
        assert cluster.wait("horovodrun") != 0
        assert "BYTEPS_LOCAL_SIZE must divide the 3 workers, got 2" in cluster.log("horovodrun")
    finally:
        cluster.stop()

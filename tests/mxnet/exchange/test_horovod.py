"""Compressed gradients over Horovod, started by horovodrun."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmark.network import Network
from tests.compressors import ONE_OF_EACH
from tests.mxnet.cluster.cluster import JOBS, start_horovod
from tests.mxnet.cluster.forked_horovod import start_forked_horovod
from tests.mxnet.cluster.jobs import gradients_of
from tests.mxnet.cluster.namespaces import needs_namespaces
from tests.mxnet.cluster.standing import run, run_horovod
from tests.mxnet.exchange.test_two_way import (
    arguments,
    assert_identical,
    check_replay,
    corrected,
    every_way,
    of_way,
)

pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_feedback_momentum_and_dtype_agrees_with_a_numpy_replay(name):
    ways = every_way(name)
    results = run_horovod("several_steps", ways)
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options)


def test_two_workers_get_bit_for_bit_what_the_parameter_server_gives_them():
    ways, variables = corrected(), {"BYTEPS_PARTITION_BYTES": 1000}
    ours = run_horovod("several_steps", ways, 2, variables)
    theirs = run("several_steps", ways, 2, 2, variables)
    for result, other in zip(ours, theirs):
        for key in result:
            if not key.endswith("row"):
                np.testing.assert_array_equal(result[key], other[key], err_msg=key)


def test_four_workers_agree_with_a_numpy_replay():
    options = arguments("dithering", steps=5)  # four busy processes are slow on two cores
    results = run_horovod("steps", options, 4, {"BYTEPS_PARTITION_BYTES": 400})
    check_replay(results, options, chunk_elements=100)
    assert_identical(results)


@pytest.mark.parametrize("params", [None, {"fp16": True}], ids=["float32", "fp16"])
def test_uncompressed_gradients_are_the_average(params):
    shapes = [(50, 20), (33,), (1,)]
    options = {
        "shapes": shapes,
        "steps": 2,
        "compression_params": params,
        "optimizer_params": {"learning_rate": 0.1},
    }
    results = run_horovod("steps", options)
    tolerance = 2e-3 if params else 1e-6
    for i in range(len(shapes)):
        expected = sum(gradients_of(rank, 1, shapes)[i] for rank in range(2)) / 2
        for result in results:
            np.testing.assert_allclose(result[f"g{i}_1"], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("root_rank", [0, 1])
def test_all_workers_start_from_the_parameters_of_the_root_rank(root_rank):
    first, second = run_horovod("broadcast", {"root_rank": root_rank})
    np.testing.assert_array_equal(first["weights"], second["weights"])
    for name in ("e0", "e1", "e2", "e3"):
        assert first[name].tobytes() == second[name].tobytes(), name
    assert first["e0"][-1] == root_rank


@needs_namespaces
def test_a_slow_link_only_makes_a_broadcast_take_longer(monkeypatch):
    """Gloo aborts a collective that takes longer than its time-out, by default 30 s."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmark")
    from processes import Processes, read_line

    script = (
        "import os; os.environ['HOROVOD_GLOO_TIMEOUT_SECONDS'] = '10'\n"
        "import mxnet as mx, gluon_gc as bps\n"
        "bps.init()\n"
        "array = mx.nd.full(10_000_000, bps.rank())\n"
        "bps.broadcast_parameters([array], root_rank=1)\n"
        "print('mean', array.mean().asscalar(), flush=True)\n"
        "bps.shutdown()"
    )
    with Network(2, rate=25e6) as network, Processes(network, timeout=100) as processes:
        for worker in processes.start_workers("horovod", 2, 0, lambda rank: ["-c", script]):
            assert float(read_line(worker, "mean ")) == 1


def test_push_pull_sums_and_averages_every_dtype():
    for result in run_horovod("push_pull"):
        for dtype in ("float32", "float64", "float16", "int32"):
            assert result[dtype].dtype == dtype
            np.testing.assert_array_equal(result[dtype], 3 * np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(result["exact"], 1 / 3.7 + 2 / 3.7)
        np.testing.assert_array_equal(result["mean"], np.full(4, 0.5))
        np.testing.assert_array_equal(result["repeated"][:, 0], np.arange(20) + 0.5)


def test_workers_that_differ_in_their_settings_are_told(tmp_path):
    with start_forked_horovod(tmp_path, "differing", {}) as cluster:
        for name in ("worker0", "worker1"):
            assert cluster.wait(name) != 0
            log = cluster.log(name)
            assert "the workers do not fit together: worker 1 has k 2 for the gradient of " in log


def test_when_a_worker_dies_horovodrun_ends_the_others(tmp_path):
    job = {"folder": str(tmp_path), "compression_params": {"compressor": "onebit"}}
    with start_horovod(tmp_path, "forever", job) as cluster:
        for rank in range(2):
            cluster.wait_for(tmp_path / f"running{rank}")
        os.kill(int((tmp_path / "running1").read_text()), signal.SIGKILL)
        assert cluster.wait("horovodrun", timeout=60) != 0
        assert "exited with" in cluster.log("horovodrun")


def test_a_collective_may_be_done_before_who_queued_it_has_returned(tmp_path):
    source, library = Path(__file__).with_name("late_name.c"), tmp_path / "late_name.so"
    compiled = ["cc", "-shared", "-fPIC", str(source), "-Wl,--no-as-needed", "-lstdc++", "-ldl"]
    subprocess.run([*compiled, "-o", str(library)], check=True)
    options = arguments(steps=3)
    cluster = start_horovod(tmp_path, "steps", options, 2, {"LD_PRELOAD": str(library)})
    try:
        check_replay(cluster.results(), options)
    finally:
        cluster.stop()


def test_an_error_in_a_collective_ends_all_and_says_what_it_is(tmp_path):
    with start_forked_horovod(tmp_path, "broken_alltoall") as cluster:
        assert cluster.wait("worker0", timeout=60) != 0 != cluster.wait("worker1", timeout=60)
        said = "Sum of splits entries is greater than the first dimension of tensor."
        assert said in cluster.log("worker1")


def test_bpslaunch_starts_workers_on_horovod(tmp_path):
    results = str(tmp_path / "resultRANK.npz")
    jobs = [sys.executable, str(JOBS), "push_pull", results, "null"]
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "--backend", "horovod"]
    done = subprocess.run([*launch, *jobs], capture_output=True, encoding="utf-8", timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        with np.load(results.replace("RANK", str(rank))) as result:
            np.testing.assert_array_equal(result["mean"], np.full(4, 0.5))


def test_there_may_be_fewer_chunks_than_workers():
    options = arguments("onebit", shapes=[(5,)], steps=2)
    results = run_horovod("steps", options, 3)
    check_replay(results, options)
    assert_identical(results)


def test_a_step_returns_before_the_others_have_come(tmp_path):
    ways = [arguments(name, "corrected", steps=3) for name in ("onebit", "dithering", "topk")]
    ways[-1]["compression_params"]["exchange"] = "gather"
    for number, way in enumerate(ways):
        way["folder"] = str(tmp_path / str(number))
        Path(way["folder"]).mkdir()
    results = run_horovod("several_steps", ways)
    assert_identical(results)
    for way, options in enumerate(ways):
        check_replay([of_way(result, way) for result in results], options)


def test_gradients_may_become_ready_in_another_order_on_each_worker(tmp_path):
    params = {"compressor": "topk", "k": 10**6}
    options = {"folder": str(tmp_path), "size": 1000, "compression_params": params}
    results = run_horovod("in_another_order", options)
    given = [gradients_of(rank, 0, [1000] * 2) for rank in range(2)]
    for result in results:
        for i, (first, second) in enumerate(zip(*given)):
            np.testing.assert_array_equal(result[f"t{i}"], first + second)


def test_an_alltoall_needs_nothing_of_who_queued_it(tmp_path):
    first, second = run_horovod("forgotten_alltoall", {"folder": str(tmp_path)})
    assert (first["splits"].tolist(), first["data"].tolist()[:2]) == ([1, 1], [0, 4])
    assert (second["splits"].tolist(), second["data"].tolist()) == ([3, 3], [1, 2, 3, 5, 6, 7])

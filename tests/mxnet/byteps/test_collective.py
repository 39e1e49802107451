"""bps.barrier() and bps.allreduce() on every backend."""

from functools import partial

import numpy as np
import pytest

from tests.mxnet.cluster.cluster import start_cluster
from tests.mxnet.cluster.forked_horovod import start_forked_horovod
from tests.mxnet.cluster.standing import run, run_horovod, run_local

SERVERS = "parameter server"
BACKENDS = [SERVERS, "horovod"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "horovod":
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    return request.param


def assert_summed(result, ranks):
    """Check the results of `metrics` on one worker of a cluster with these ranks."""
    workers, of_ranks = len(ranks), sum(ranks)
    assert result["float"] == sum(1 / 3 + rank for rank in ranks) / workers
    assert result["int"] == workers * 2**31 + of_ranks and result["int"].dtype == np.int64
    assert result["int mean"] == (of_ranks + workers) / workers
    assert result["large"] == workers * 2**60 + of_ranks
    assert result["mixed"] == of_ranks / 2
    array = sum(np.array([[rank, 1 / 3], [2**24 + 1, -rank]]) for rank in ranks)
    np.testing.assert_array_equal(result["array"], array)
    np.testing.assert_array_equal(result["ints"], [1, of_ranks / workers])
    np.testing.assert_array_equal(result["NDArray"], [of_ranks, workers / 2])
    assert result["NDArray"].dtype == np.float16 and result["ints"].dtype == np.float64
    np.testing.assert_array_equal(result["again"], np.arange(20) + of_ranks / workers)
    assert result["kinds"].tolist() == ["float", "float", "NDArray", "ndarray"]
    assert (result["w"] < 1).all()


def test_metrics_are_averaged_and_summed_in_double_precision(backend):
    of_backend = run_horovod if backend == "horovod" else partial(run, servers=2)
    for result in of_backend("metrics"):
        assert_summed(result, ranks=[0, 1])


def test_a_worker_alone_has_its_own_metrics_and_waits_for_nobody(tmp_path):
    assert_summed(run_local("metrics"), ranks=[0])
    (tmp_path / "go").touch()
    run_local("barrier", {"folder": str(tmp_path)})
    assert (tmp_path / "gone0").exists()


def test_nobody_passes_a_barrier_before_all_have_come(backend, tmp_path):
    start = start_forked_horovod if backend == "horovod" else start_cluster
    with start(tmp_path, "barrier", {"folder": str(tmp_path)}) as cluster:
        for path in ("came0", "waits1"):
            cluster.wait_for(tmp_path / path)
        assert not (tmp_path / "gone1").exists()
        (tmp_path / "go").touch()
        assert all(result["together"] for result in cluster.results())
    assert (tmp_path / "gone0").exists() and (tmp_path / "gone1").exists()


def test_workers_that_do_different_things_together_are_told(backend):
    of_backend = run_horovod if backend == "horovod" else run
    about = {
        "barrier": ("call", '"barrier"', '"allreduce"'),
        "shape": ("shape", "[1]", "[2]"),
        "average": ("average", "true", "false"),
        "dtype": ("64-bit integers", "false", "true"),
    }
    for said in of_backend("different_collectives"):
        for name, (key, zero, one) in about.items():
            (sentence,) = str(said[name]).split(": ", 1)[1:]
            assert sentence in (  # the worker that the server heard first is named last
                f"worker 0 has {key} {zero}, but worker 1 has {one}",
                f"worker 1 has {key} {one}, but worker 0 has {zero}",
            )

"""bps.barrier() and bps.allreduce() on every backend."""

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.cluster import start_cluster, start_forked_horovod
from tests.mxnet.cluster.jobs import backward, parameters, wait_for
from tests.mxnet.cluster.standing import on_workers, run_local


def assert_summed(ranks):
    """Call bps.allreduce with all types that it takes, between steps that are still running."""
    rank, workers, of_ranks = bps.rank(), len(ranks), sum(ranks)
    params = parameters([(400,)])
    trainer = bps.DistributedTrainer(
        params, "sgd", compression_params={"compressor": "onebit", "scaling": True}
    )
    backward(params, [np.ones(400, np.float32)])
    trainer.step(1)
    assert bps.allreduce(1 / 3 + rank) == sum(1 / 3 + rank for rank in ranks) / workers
    assert bps.allreduce(rank + 1) == (of_ranks + workers) / workers
    total = bps.allreduce(2**31 + rank, average=False)
    assert total == workers * 2**31 + of_ranks and np.asarray(total).dtype == np.int64
    assert bps.allreduce(2**60 + rank, average=False) == workers * 2**60 + of_ranks
    assert bps.allreduce(0 if rank == 0 else 0.5 * rank, average=False) == of_ranks / 2
    array = np.array([[rank, 1 / 3], [2**24 + 1, -rank]])
    given = array.copy()
    expected = sum(np.array([[rank, 1 / 3], [2**24 + 1, -rank]]) for rank in ranks)
    np.testing.assert_array_equal(bps.allreduce(array, average=False), expected)
    ints = bps.allreduce(np.array([1, rank]))
    np.testing.assert_array_equal(ints, [1, of_ranks / workers])
    small = mx.nd.array([rank, 0.5], dtype="float16")
    summed = bps.allreduce(small, average=False)
    np.testing.assert_array_equal(summed.asnumpy(), [of_ranks, workers / 2])
    assert summed.dtype == np.float16 and ints.dtype == np.float64
    for i in range(20):
        assert bps.allreduce(float(rank + i)) == i + of_ranks / workers
    kinds = [type(bps.allreduce(value)) for value in (1.5, np.float32(1), small, array)]
    assert kinds == [float, float, mx.nd.NDArray, np.ndarray]
    np.testing.assert_array_equal(array, given)
    np.testing.assert_array_equal(small.asnumpy(), [rank, 0.5])
    backward(params, [np.ones(400, np.float32)])
    trainer.step(1)
    assert (params[0].data().asnumpy() < 1).all()


@on_workers(2, "servers", "horovod")
def test_metrics_are_averaged_and_summed_in_double_precision():
    assert_summed([0, 1])


def test_a_worker_alone_has_its_own_metrics():
    run_local(assert_summed, {"ranks": [0]})


def barrier(folder):
    """Pass two barriers, where worker 0 is late; files show how far each worker has come."""
    folder = Path(folder)
    bps.barrier()
    (folder / f"came{bps.rank()}").touch()
    if bps.rank() == 0:
        wait_for(folder / "go")
    (folder / f"waits{bps.rank()}").touch()
    bps.barrier()
    assert (folder / "go").exists()
    (folder / f"gone{bps.rank()}").touch()


def test_a_worker_alone_waits_for_nobody(tmp_path):
    (tmp_path / "go").touch()
    run_local(barrier, {"folder": str(tmp_path)})
    assert (tmp_path / "gone0").exists()


@pytest.mark.parametrize("start", [start_cluster, start_forked_horovod])
def test_nobody_passes_a_barrier_before_all_have_come(start, tmp_path):
    with start(tmp_path, barrier, {"folder": str(tmp_path)}) as cluster:
        for path in ("came0", "waits1"):
            cluster.wait_for(tmp_path / path)
        assert not (tmp_path / "gone1").exists()
        (tmp_path / "go").touch()
        cluster.wait_for_end()
    assert (tmp_path / "gone0").exists() and (tmp_path / "gone1").exists()


def differing_calls():
    return bps.allreduce(1.0) if bps.rank() else bps.barrier()


def differing_shapes():
    bps.allreduce(np.zeros(1 + bps.rank()))


def differing_averages():
    bps.allreduce(1.0, average=bps.rank() == 0)


def differing_dtypes():
    bps.allreduce(np.zeros(3, np.int64 if bps.rank() else np.float64))


@pytest.mark.parametrize(
    "call, key, zero, one",
    [
        (differing_calls, "call", '"barrier"', '"allreduce"'),
        (differing_shapes, "shape", "[1]", "[2]"),
        (differing_averages, "average", "true", "false"),
        (differing_dtypes, "64-bit integers", "false", "true"),
    ],
)
@on_workers(2, "servers", "horovod")
def test_workers_that_do_different_things_together_are_told(call, key, zero, one):
    with pytest.raises(RuntimeError) as raised:
        call()
    (sentence,) = str(raised.value).split(": ", 1)[1:]
    assert sentence in (  # the worker that the server heard first is named last
        f"worker 0 has {key} {zero}, but worker 1 has {one}",
        f"worker 1 has {key} {one}, but worker 0 has {zero}",
    )

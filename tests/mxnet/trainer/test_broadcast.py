"""All workers begin with the root rank's parameters."""

import tracemalloc

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import assert_same_on_all_workers
from tests.mxnet.cluster.standing import on_workers, run


@pytest.mark.parametrize("root_rank", [0, 1])
@on_workers(2, "servers", "horovod")
def test_deferred_parameters_too_are_those_of_the_root_rank(root_rank):
    mx.random.seed(bps.rank())
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(5, in_units=3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(4))
    net.initialize(mx.init.Normal(1.0))
    bps.DistributedTrainer(net.collect_params(), "sgd", root_rank=root_rank)
    net(mx.nd.ones((2, 3)))
    for param in net.collect_params().values():
        assert_same_on_all_workers(param.data().asnumpy())


def exact_arrays(rank):
    return [
        np.array([-0.0, 1e-42, np.inf, -np.inf, rank], np.float32),
        np.array([[2**31 - 1 - rank, -5]], np.int32),
        np.array([1 / 3 + rank]),
        np.array([rank + 0.1], np.float16),
    ]


@pytest.mark.parametrize("root_rank", [0, 1])
@on_workers(2, "servers", "horovod")
def test_a_broadcast_keeps_every_bit(root_rank):
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in exact_arrays(bps.rank())]
    bps.broadcast_parameters(dict(enumerate(arrays)), root_rank=root_rank)
    for array, expected in zip(arrays, exact_arrays(root_rank)):
        assert array.asnumpy().tobytes() == expected.tobytes()


@on_workers(2, servers=2, variables={"BYTEPS_PARTITION_BYTES": 65536})
def test_a_broadcast_through_servers_needs_little_memory_besides_the_arrays():
    sizes = [1, 700_001, 0, 3, 300_000, 1]  # 4 MB
    arrays = [mx.nd.full(size, bps.rank() + 3.0) for size in sizes]
    arrays.insert(1, mx.nd.full((4, 2), bps.rank() + 3.0).tostype("row_sparse"))
    mx.nd.waitall()
    tracemalloc.start()
    try:
        bps.broadcast_parameters(dict(enumerate(arrays)), root_rank=0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all((array.asnumpy() == 3).all() for array in arrays)
    assert peak_bytes < 1_000_000


def changed(algorithm, on_all, call):
    """Change parameters after the trainer is made, on all workers or only on the root, worker 1.

    Returns all copies of the parameters after the call.
    """
    rank, contexts = bps.rank(), [mx.cpu(0), mx.cpu(1)]
    dense, norm = mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4)
    net = mx.gluon.nn.HybridSequential()
    net.add(dense, norm)
    net.initialize(ctx=contexts)
    dense.bias.grad_req = "null"
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", root_rank=1, algorithm=algorithm)
    if on_all:
        mx.random.seed(rank)
        net.initialize(mx.init.Normal(1.0), ctx=contexts, force_reinit=True)
    elif rank == 1:
        dense.weight.set_data(mx.nd.full((4, 3), 7.0))
        dense.bias.set_data(mx.nd.full(4, 5.0))
    with mx.autograd.record():
        losses = [net(mx.nd.array(np.eye(3) + rank, ctx=context)).sum() for context in contexts]
    mx.autograd.backward(losses)
    getattr(trainer, call)(2)
    kept = {"weight": dense.weight, "bias": dense.bias, "running_mean": norm.running_mean}
    return {
        f"{name}{i}": array.asnumpy()
        for name, param in kept.items()
        for i, array in enumerate(param.list_data())
    }


@pytest.mark.parametrize("on_all", [True, False])
@pytest.mark.parametrize(
    "algorithm, call",
    [(None, "allreduce_grads"), (None, "step"), ({"name": "local_steps", "every": 1}, "step")],
)
def test_parameters_that_change_after_the_trainer_is_made_are_broadcast(algorithm, on_all, call):
    first, second = run(changed, {"algorithm": algorithm, "on_all": on_all, "call": call})
    for name in ("weight0", "weight1", "bias0", "bias1"):
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_array_equal(first[name], first[name[:-1] + "0"])
    assert on_all or (first["bias0"] == 5).all()
    assert on_all or call == "step" or (first["weight0"] == 7).all()
    assert (first["running_mean0"] != second["running_mean0"]).any()

"""bps.average_statistics makes BatchNorm's running means and variances equal on all workers."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.jobs import assert_same_on_all_workers
from tests.mxnet.cluster.standing import on_workers


@pytest.mark.parametrize("contexts", [1, 2])
@on_workers(2, "servers", "horovod", "machine")
def test_running_statistics_are_averaged_over_all_contexts_of_all_workers(contexts):
    contexts = [mx.cpu(c) for c in range(contexts)]
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(6, in_units=4), mx.gluon.nn.BatchNorm(in_channels=6))
    net.initialize(mx.init.One(), ctx=contexts)
    random = np.random.RandomState(bps.rank())
    for _ in range(3):
        for context in contexts:
            with mx.autograd.record():
                output = net(mx.nd.array(random.standard_normal((8, 4)), ctx=context))
            output.backward()  # backward updates the running statistics
    params = [net[1].running_mean, net[1].running_var]
    own = [np.mean([array.asnumpy() for array in param.list_data()], axis=0) for param in params]
    bps.average_statistics(net)
    after = [[array.asnumpy() for array in param.list_data()] for param in params]
    for statistic, copies in zip(own, after):
        assert (statistic != copies[0]).any()
        for copy in copies:
            np.testing.assert_allclose(copy, bps.allreduce(statistic), rtol=1e-6, atol=1e-7)
            assert_same_on_all_workers(copy)
    bps.average_statistics(list(net.collect_params().values()))
    for param, copies in zip(params, after):
        for array, copy in zip(param.list_data(), copies):
            np.testing.assert_array_equal(array.asnumpy(), copy)
    for context in contexts:
        assert_same_on_all_workers(net(mx.nd.ones((2, 4), ctx=context)).asnumpy())
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), np.ones((6, 4)))


@pytest.fixture
def alone():
    bps.init()
    yield
    bps.shutdown()


def normalised(kind, **kwargs):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=2), kind(in_channels=3, **kwargs))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    return net


def names_of(net):
    """Return the parameters that average_statistics makes equal on two contexts."""
    params = net.collect_params().values()
    for param in params:
        for number, array in enumerate(param.list_data()):
            array[:] = number
    bps.average_statistics(net)
    return {p.name.rpartition("_")[2] for p in params if p.data(mx.cpu(0)).asnumpy().max() == 0.5}


@pytest.mark.parametrize(
    "kind, how",
    [
        (mx.gluon.nn.BatchNorm, {}),
        (mx.gluon.nn.BatchNorm, {"use_global_stats": True, "scale": False}),
        (mx.gluon.contrib.nn.SyncBatchNorm, {"num_devices": 2}),
    ],
)
def test_all_kinds_of_batch_norm_have_statistics_and_nothing_else_is_one(alone, kind, how):
    net = normalised(kind, **how)
    for other in (mx.gluon.nn.LayerNorm(in_channels=3), mx.gluon.nn.InstanceNorm(in_channels=3)):
        other.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        net.add(other)
    net[0].weight.grad_req = "null"  # frozen
    assert names_of(net) == {"mean", "var"}


def test_a_network_from_a_file_has_its_statistics_by_name(alone, tmp_path):
    net = normalised(mx.gluon.nn.BatchNorm)
    net.hybridize()
    net(mx.nd.ones((1, 2)))
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    loaded = mx.gluon.SymbolBlock.imports(*files, ctx=[mx.cpu(0), mx.cpu(1)])
    assert names_of(loaded) == {"mean", "var"}


def test_float16_statistics_and_what_is_not_initialized_yet(alone):
    net = normalised(mx.gluon.nn.BatchNorm)
    net.cast("float16")
    net.add(mx.gluon.nn.BatchNorm())
    net[2].initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    bps.average_statistics(net)
    # Gluon keeps the statistics in float32.
    assert net[1].running_var.data(mx.cpu(0)).dtype == np.float32


@pytest.mark.parametrize("net", [3, [mx.nd.ones(1)], "net"])
def test_what_is_no_network_is_refused(alone, net):
    with pytest.raises(TypeError, match="net must be a Block, or a ParameterDict, dict or list"):
        bps.average_statistics(net)


def test_a_network_without_statistics_may_be_passed(alone):
    net = mx.gluon.nn.Dense(3, in_units=2)
    net.initialize()
    bps.average_statistics(net)

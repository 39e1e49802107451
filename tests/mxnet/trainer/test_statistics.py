"""bps.average_statistics makes BatchNorm's running means and variances equal on all workers."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from tests.mxnet.cluster.standing import run, run_horovod, run_machine


@pytest.mark.parametrize("start", [run, run_horovod, run_machine])
@pytest.mark.parametrize("contexts", [1, 2])
def test_running_statistics_are_averaged_over_all_contexts_of_all_workers(start, contexts):
    if start is run_horovod:
        pytest.importorskip("horovod.mxnet", reason="Horovod is not installed")
    results = start("statistics", {"contexts": contexts}, workers=2)
    before = np.concatenate([result["before"] for result in results], axis=1)
    assert all((before[:, 0] != copy).any() for copy in before.swapaxes(0, 1)[1:])
    for result in results:
        for statistic, copies, again in zip(before, result["after"], result["again"]):
            for copy in copies:
                np.testing.assert_allclose(copy, statistic.mean(axis=0), rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(again, copies)
        for output in result["outputs"]:
            np.testing.assert_array_equal(output, results[0]["outputs"][0])
        np.testing.assert_array_equal(result["after"], results[0]["after"])
        np.testing.assert_array_equal(result["weight"], np.ones((6, 4)))


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

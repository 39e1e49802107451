"""pushpull of single tensors: where the sum is written, and which input is an error."""

import mxnet as mx
import numpy as np
import pytest

import gluon_gc as bps
from gluon_gc.mxnet import kvstore
from gluon_gc.mxnet.byteps.runtime import create_exchange, default_exchange
from gluon_gc.mxnet.exchange.gradient import Job
from tests.mxnet.cluster.standing import on_workers

N = 1000
COMPRESSIONS = pytest.mark.parametrize(
    "params",
    [{}, {"fp16": True}, {"compressor": "onebit", "scaling": True}],
    ids=["plain", "fp16", "onebit"],
)


def store_of(params, exchange=None):
    store = kvstore.CompressingKVStore(exchange or create_exchange("local"))
    store.set_gradient_compression(params)
    for key in "ab":
        store.broadcast(key, mx.nd.zeros(N), out=[])
    return store


def values(seed, ctx=0):
    array = np.random.default_rng(seed).standard_normal(N).astype(np.float32)
    return mx.nd.array(array, ctx=mx.cpu(ctx))


@COMPRESSIONS
def test_what_is_pushed_is_left_as_it_is_unless_it_is_pulled_to(params):
    value, out, in_place = values(0), mx.nd.zeros(N), values(0)
    store_of(params).pushpull("a", value, out=out)
    np.testing.assert_array_equal(value.asnumpy(), values(0).asnumpy())
    store_of(params).pushpull("a", in_place)
    np.testing.assert_array_equal(out.asnumpy(), in_place.asnumpy())
    assert params.get("compressor") is None or (out.asnumpy() != value.asnumpy()).any()


@COMPRESSIONS
def test_several_contexts_are_left_as_they_are_too(params):
    pushed, pulled = [values(c, c) for c in range(3)], [mx.nd.zeros(N, mx.cpu(c)) for c in range(2)]
    store_of(params).pushpull("a", pushed, out=pulled)
    for c, value in enumerate(pushed):
        np.testing.assert_array_equal(value.asnumpy(), values(c).asnumpy())
    in_place = [values(c, c) for c in range(3)]
    store_of(params).pushpull("a", in_place)
    for array in [*pulled, *in_place]:
        np.testing.assert_array_equal(array.asnumpy(), in_place[0].asnumpy())


@COMPRESSIONS
def test_keys_may_be_pulled_to_where_other_keys_are_pushed_from(params):
    a, b = values(0), values(1)
    store_of(params).pushpull(["a", "b"], [a, b], out=[b, a])
    expected = values(0), values(1)
    store_of(params).pushpull(["a", "b"], list(expected))
    np.testing.assert_array_equal(b.asnumpy(), expected[0].asnumpy())
    np.testing.assert_array_equal(a.asnumpy(), expected[1].asnumpy())


def test_the_sum_may_be_wanted_in_another_dtype_or_storage():
    value, half, sparse = values(0), mx.nd.zeros(N, dtype="float16"), mx.nd.zeros(N)
    store_of({}).pushpull("a", value, out=[half, sparse])
    np.testing.assert_array_equal(half.asnumpy(), value.asnumpy().astype(np.float16))
    store = mx.kv.create("GluonGCLocal")
    store.broadcast("rows", mx.nd.zeros((3, 2)), out=[])
    rows = mx.nd.array([[0, 0], [1, 2], [0, 0]])
    out = mx.nd.sparse.zeros("row_sparse", (3, 2))
    store.pushpull("rows", rows.tostype("row_sparse"), out=out)
    np.testing.assert_array_equal(out.asnumpy(), rows.asnumpy())


def test_stores_that_share_a_backend_do_not_mix():
    params, results = {"compressor": "topk", "k": 0.05, "ef": "vanilla"}, []
    for exchange in (create_exchange("local"), None):
        stores, pulled = [store_of(params, exchange) for _ in range(2)], []
        for seed in range(6):
            pulled.append(values(seed))
            stores[seed % 2].pushpull("a", pulled[-1])
        results.append([array.asnumpy() for array in pulled])
    np.testing.assert_array_equal(*results)


def test_a_key_of_one_store_is_broadcast_once():
    store = store_of({})
    with pytest.raises(ValueError, match="key 'a' was broadcast before: give each Trainer a store"):
        store.broadcast("a", mx.nd.zeros(N), out=[])
    with pytest.raises(KeyError, match="key 'c' was not broadcast"):
        store.pushpull("c", values(0))


@pytest.mark.parametrize(
    "tensor, problem",
    [
        (mx.nd.ones((2, 4)), r"got shape \(2, 4\), 8 elements of float32"),
        (mx.nd.ones(6, dtype="float64"), r"got shape \(6,\), 6 elements of float64"),
    ],
)
def test_a_name_is_of_one_size_and_dtype(tensor, problem):
    bps.init()
    try:
        bps.byteps_push_pull(mx.nd.ones((2, 3)), name="w")
        bps.byteps_push_pull(mx.nd.ones(6), name="w")  # BytePS ignores shapes
        rule = "tensor 'w' must have 6 elements of float32, as when it was declared"
        with pytest.raises(ValueError, match=f"{rule}; {problem}"):
            bps.byteps_push_pull(tensor, name="w")
    finally:
        bps.shutdown()


@pytest.fixture
def alone():
    bps.init()
    yield
    bps.shutdown()


@pytest.mark.parametrize(
    "value, problem",
    [
        (3, r"must be an NDArray, got 3 \(int\); bps.allreduce takes"),
        (0.5, r"must be an NDArray, got 0.5 \(float\)"),
        (1j, r"must be an NDArray, got 1j \(complex\)"),
        (np.ones(1), r"must be an NDArray, got array\(\[1.\]\) \(ndarray\)"),
        (mx.nd.ones(2).astype(bool), "must have floats or integers, got bool: cast it"),
    ],
)
def test_what_cannot_be_summed_is_refused_by_name(alone, value, problem):
    for is_average in (True, False):
        with pytest.raises(TypeError, match=f"tensor 'odd' {problem}"):
            bps.byteps_push_pull(value, name="odd", is_average=is_average)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("numpy_mode", [False, True])
def test_integers_may_be_of_any_dtype_and_kind_of_array(alone, dtype, numpy_mode):
    mx.npx.set_np(numpy_mode, numpy_mode)
    try:
        tensor = (mx.np if numpy_mode else mx.nd).array([[1, 2], [3, 100]], dtype=dtype)
        for is_average in (True, False, True):
            bps.byteps_push_pull(tensor, name="i", is_average=is_average)
        assert tensor.asnumpy().dtype == dtype and tensor.asnumpy().tolist() == [[1, 2], [3, 100]]
        with pytest.raises(ValueError, match=f"must have 4 elements of {dtype}, as when it was"):
            bps.byteps_push_pull(tensor.astype("float32"), name="i")
    finally:
        mx.npx.reset_np()


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_a_sparse_tensor_travels_as_a_dense_one(alone, stype):
    dense = np.array([[0, 0], [1, 2], [0, 0]], np.float32)
    tensor = mx.nd.array(dense).tostype(stype)
    bps.byteps_push_pull(tensor, name="s")
    assert tensor.stype == stype
    np.testing.assert_array_equal(tensor.asnumpy(), dense)


@pytest.mark.parametrize(
    "params, problem",
    [
        ([np.ones(2)], r"params\[0\] must be a Parameter or an NDArray, got ndarray"),
        ({"b": mx.nd.ones(1), "a": 3}, r"params\['a'\] must be a Parameter or an NDArray, got int"),
        (mx.nd.ones(2), "params must be a ParameterDict, a dict or a list, got NDArray"),
    ],
)
def test_what_cannot_be_broadcast_is_refused_by_name(alone, params, problem):
    with pytest.raises(TypeError, match=problem):
        bps.broadcast_parameters(params)


@pytest.mark.parametrize(
    "value, problem",
    [
        ("0.5", r"a number, an ndarray or an NDArray, got '0.5' \(str\)"),
        ([1.0, 2.0], r"a number, an ndarray or an NDArray, got \[1.0, 2.0\] \(list\)"),
        (1j, "a number"),
        (True, r"integers or floats, got True \(bool\)"),
        (np.array(["a"]), "integers or floats"),
    ],
)
def test_a_metric_is_of_numbers(value, problem):
    with pytest.raises(TypeError, match=f"value must (be|have) {problem}"):
        bps.allreduce(value)


def test_barrier_and_metrics_need_init():
    for call in (bps.barrier, lambda: bps.allreduce(1.0)):
        with pytest.raises(RuntimeError, match="call bps.init\\(\\) (first|to go on)"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@on_workers(2, "servers", "horovod")
def test_two_workers_sum_in_the_tensors_dtype(dtype):
    tensor = mx.nd.array(np.arange(6).reshape(2, 3) * (bps.rank() + 1), dtype=dtype)
    bps.byteps_push_pull(tensor, name="sum" + dtype, is_average=False)
    assert tensor.asnumpy().dtype == dtype
    np.testing.assert_array_equal(tensor.asnumpy(), 3 * np.arange(6).reshape(2, 3))


@on_workers(2, "servers", "horovod")
def test_doubles_are_summed_as_doubles():
    exact = mx.nd.array([(bps.rank() + 1) / 3.7], dtype="float64")
    bps.byteps_push_pull(exact, name="exact", is_average=False)
    np.testing.assert_array_equal(exact.asnumpy(), 1 / 3.7 + 2 / 3.7)


@on_workers(2, "servers", "horovod")
def test_only_the_name_orders_the_averages_of_a_tensor():
    repeated = [mx.nd.ones(4) * (bps.rank() + step) for step in range(20)]
    bps.byteps_push_pull(mx.nd.ones(4), name="mean")
    for step, array in enumerate(repeated):
        exchange, values = default_exchange(), mx.nd.ones(4) * (bps.rank() + step)
        gradient = exchange.channels.gradient("byteps.mean", [values], [array])
        exchange.start(Job({"byteps.mean": gradient}, scale=1 / bps.size()))
    for step, array in enumerate(repeated):
        np.testing.assert_array_equal(array.asnumpy(), np.full(4, step + 0.5))


@on_workers(2)
def test_a_declared_tensor_is_compressed():
    bps.byteps_declare_tensor("signs", compressor="onebit", scaling=True)
    signs = mx.nd.array([1, -1, 1, -1])
    bps.byteps_push_pull(signs, name="signs")
    np.testing.assert_array_equal(signs.asnumpy(), [1, -1, 1, -1])


@on_workers(2)
def test_tensors_without_a_name_are_summed_in_the_order_of_the_calls():
    nameless = [mx.nd.ones(4 + i) * (bps.rank() + i) for i in range(2)]
    for tensor in nameless:
        bps.byteps_push_pull(tensor, is_average=False)
    assert [tensor.asnumpy().tolist() for tensor in nameless] == [[1] * 4, [3] * 5]


@on_workers(2)
def test_a_distributed_optimizer_applies_the_average():
    optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    weight = mx.nd.zeros(3)
    gradient = mx.nd.ones(3) * (bps.rank() + 1)
    optimizer.update(0, weight, gradient, optimizer.create_state(0, weight))
    np.testing.assert_array_equal(weight.asnumpy(), np.full(3, -1.5))


VALUES = {"int8": 100, "uint8": 200, "int32": 2**30, "int64": 2**62 + 1}


def pulled(name, value, dtype, is_average):
    """Push an array of `value` plus the rank and minus the rank; returns what comes back."""
    own = np.array([value + bps.rank(), -bps.rank() if dtype != "uint8" else 0])
    tensor = mx.nd.array(own, dtype=dtype)
    bps.byteps_push_pull(tensor, name=name, is_average=is_average)
    assert tensor.asnumpy().dtype == dtype
    return tensor.asnumpy().tolist()


@pytest.mark.parametrize("dtype", VALUES)
@on_workers(2, "servers", "horovod", "machine")
def test_averages_of_integers_are_exact_and_a_sum_that_does_not_fit_is_an_error(dtype):
    value = VALUES[dtype]
    # value + 0.5 and -0.5, rounded towards 0
    assert pulled(f"{dtype} average", value, dtype, True) == [value, 0]
    rule = f"the sum of tensor '{dtype} sum' over all workers must be in"
    with pytest.raises(OverflowError, match=rule):
        pulled(f"{dtype} sum", value, dtype, False)


@on_workers(2, "servers", "horovod", "machine")
def test_sums_of_integers_are_exact():
    assert pulled("large", 2**61, "int64", False) == [2**62 + 1, -1]
    assert pulled("small", 3, "uint8", False) == [7, 0]

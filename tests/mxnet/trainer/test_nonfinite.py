"""NaNs and infinities in gradients: who gets an error, and the state afterwards."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp
from mxnet.contrib.amp.loss_scaler import LossScaler

import gluon_gc as bps
from gluon_gc.mxnet.byteps import push_pull, runtime
from gluon_gc.mxnet.byteps.runtime import create_exchange
from gluon_gc.mxnet.engine import operators
from gluon_gc.mxnet.state import tensor_states
from tests.compressors import COMPRESSORS, ONE_OF_EACH
from tests.mxnet.cluster.cluster import start_cluster
from tests.mxnet.cluster.jobs import backward, make, parameters
from tests.mxnet.cluster.standing import on_workers

N = 500
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
BAD = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


@pytest.fixture(params=ONE_OF_EACH)
def compression(request):
    return {**COMPRESSORS[request.param], "ef": "vanilla", "momentum": "nesterov"}


def trained(compression, on_nonfinite):
    optimizer_params = {"learning_rate": 0.1, "momentum": 0.9}
    params, trainer = make([(N,)], optimizer_params, compression, on_nonfinite=on_nonfinite)
    return params, trainer


def gradient(step, bad=None):
    values = np.random.default_rng(step).standard_normal(N).astype(np.float32)
    if bad is not None:
        values[7] = bad
    return [values]


@BAD
def test_it_is_raised_by_parameter_and_step(compression, bad):
    params, trainer = trained(compression, "raise")
    for step in range(2):
        backward(params, gradient(step))
        trainer.step(1)
    backward(params, gradient(2, bad))
    trainer.step(1)
    with pytest.raises(
        mx.MXNetError, match="the gradient of p0 has a NaN or an infinity in step 3"
    ):
        params[0].data().asnumpy()


@BAD
def test_a_step_that_is_skipped_changes_no_weight_and_no_state(compression, bad):
    params, trainer = trained(compression, "skip")

    def state():
        return dict(tensor_states.state(trainer._averaging.exchange, trainer._averaging.names()))

    for step in range(2):
        backward(params, gradient(step))
        trainer.step(1)
    before, weight = state(), params[0].data().asnumpy()
    assert {key.what for key in before} >= {"residual", "momentum"}
    backward(params, gradient(2, bad))
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), weight)
    for key, array in state().items():
        np.testing.assert_array_equal(array, before[key])
    backward(params, gradient(3))
    trainer.step(1)
    after = params[0].data().asnumpy()
    assert np.isfinite(after).all() and (after != weight).any()


@BAD
def test_it_is_propagated_on_request(compression, bad):
    params, trainer = trained(compression, "propagate")
    backward(params, gradient(0, bad))
    trainer.step(1)
    assert not np.isfinite(params[0].grad().asnumpy()).all()


PLAIN = pytest.mark.parametrize("params", [None, {"fp16": True}], ids=["float32", "float16"])


@PLAIN
@BAD
def test_uncompressed_gradients_raise_too(params, bad):
    shapes = [(N,), (7,), (30, 1000)]  # two are fused, one has its own message
    for culprit in range(3):
        weights, trainer = make(shapes, {"learning_rate": 0.1}, params, contexts=2)
        for step in range(2):
            values = [np.ones(shape, np.float32) for shape in shapes]
            if step == 1:
                values[culprit].ravel()[5] = bad
            backward(weights, values)
            trainer.step(1)
        message = f"the gradient of p{culprit} has a NaN or an infinity in step 2"
        with pytest.raises(mx.MXNetError, match=message):
            weights[culprit].data(mx.cpu(1)).asnumpy()


def test_values_whose_sum_overflows_in_float16_raise():
    params, trainer = make([(N,)], {"learning_rate": 0.1}, {"fp16": True})
    backward(params, [np.full(N, 70000, np.float32)])
    trainer.step(1)
    with pytest.raises(mx.MXNetError, match="the gradient of p0 has a NaN or an infinity in step"):
        params[0].data().asnumpy()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_that_travel_uncompressed_raise_and_integers_never(dtype):
    largest = mx.gluon.Parameter("integers", shape=(3,), dtype="int32")
    floats = mx.gluon.Parameter("floats", shape=(3,), dtype=dtype)
    for param in (largest, floats):
        param.initialize(mx.init.Zero())
    trainer = bps.DistributedTrainer([largest, floats], "sgd", kvstore="local")
    largest.list_grad()[0][:] = 2**31 - 1
    floats.list_grad()[0][:] = 1
    trainer.allreduce_grads()
    np.testing.assert_array_equal(largest.grad().asnumpy(), 2**31 - 1)
    floats.list_grad()[0][:] = np.nan
    trainer.allreduce_grads()
    with pytest.raises(mx.MXNetError, match="the gradient of floats has a NaN or an infinity"):
        floats.grad().asnumpy()


@PLAIN
def test_uncompressed_ones_are_propagated_on_request(params):
    weights, trainer = make([(N,)], {"learning_rate": 0.1}, params, on_nonfinite="propagate")
    backward(weights, gradient(0, np.nan))
    trainer.step(1)
    assert np.isnan(weights[0].data().asnumpy()).sum() == 1


def test_an_error_that_was_seen_does_not_come_back():
    params, trainer = make([(N,)], {"learning_rate": 1.0})
    backward(params, gradient(0, np.nan))
    trainer.step(1)
    with pytest.raises(mx.MXNetError, match="in step 1"):
        params[0].data().asnumpy()
    params[0].set_data(mx.nd.ones(N))
    backward(params, [np.ones(N, np.float32)])
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), np.zeros(N))


@pytest.mark.parametrize("compression", [None, ONEBIT], ids=["uncompressed", "onebit"])
@pytest.mark.parametrize("bad", [1, 3])
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "onebit_adam", "freeze_step": 3},
        {"name": "zero_one_adam", "var_freeze_step": 2},
        {"name": "local_steps", "every": 2},
        {"name": "local_steps", "every": 2, "overlap": 1},
    ],
    ids=["onebit_adam", "zero_one_adam", "local_steps", "overlap"],
)
def test_training_with_an_algorithm_goes_on_after_an_error(algorithm, bad, compression):
    optimizer = "adam" if "adam" in algorithm["name"] else "sgd"
    params, trainer = make(
        [(N,), (3, 5)],
        {"learning_rate": 0.01},
        compression,
        contexts=2,
        optimizer=optimizer,
        algorithm=algorithm,
    )
    failed, weights = [], []
    for step in range(12):
        values = [*gradient(0), np.ones((3, 5), np.float32)]
        values[0][7] = np.nan if step == bad else 1
        backward(params, values)
        try:
            trainer.step(1)
            for param in params:
                param.data().wait_to_read()
        except mx.MXNetError:
            failed.append(step)
        copies = [params[0].data(mx.cpu(context)).asnumpy() for context in range(2)]
        np.testing.assert_array_equal(*copies)
        weights.append(copies[0])
    assert len(failed) == 1 and bad <= failed[0] <= bad + 2
    assert np.isfinite(weights[failed[0]]).all() and np.isfinite(weights[-1]).all()
    assert (weights[-1] != weights[failed[0]]).any()


@pytest.mark.parametrize("compression", [None, ONEBIT], ids=["uncompressed", "onebit"])
@pytest.mark.parametrize("saves", [True, False])
def test_an_overlapped_average_that_failed_is_an_error_even_if_the_script_has_caught_it(
    compression, saves, tmp_path
):
    algorithm = {"name": "local_steps", "every": 4, "overlap": 2}
    params, trainer = make([(N,)], {"learning_rate": 0.5}, compression, algorithm=algorithm)
    said = {}
    for step in range(1, 9):
        values = [np.ones(N, np.float32)]
        values[0][7] = np.nan if step == 2 else 1
        backward(params, values)
        try:
            trainer.step(1)
        except mx.MXNetError as error:
            said[step] = str(error)
        if step == 4:
            with pytest.raises(mx.MXNetError, match="difference of p0"):
                trainer.save_states(str(tmp_path / "states")) if saves else mx.nd.waitall()
    expected = "difference of p0 has a NaN" if saves else "round 'difference' of step 4 had a NaN"
    assert list(said) == [6] and expected in said[6]
    np.testing.assert_array_equal(params[0].data().asnumpy(), 1 - 0.5 * 2)


@pytest.fixture(params=[None, *ONE_OF_EACH, "dgc"])
def declared(request, monkeypatch):
    """Declare "x" with a compressor; returns a function that pushes and pulls values."""
    monkeypatch.setattr(runtime, "_default", create_exchange("local"))
    monkeypatch.setattr(push_pull, "_declared", {})
    monkeypatch.setattr(push_pull, "_used", {})
    params = {"compressor": "dgc", "k": 0.2}
    if request.param != "dgc":
        params = {**COMPRESSORS[request.param], "ef": "vanilla"} if request.param else {}

    def declare(on_nonfinite):
        bps.byteps_declare_tensor("x", on_nonfinite, **params)

        def push_pull(values):
            tensor = mx.nd.array(values, dtype=values.dtype)
            bps.byteps_push_pull(tensor, name="x")
            return tensor.asnumpy()

        return push_pull

    declare.compressed = bool(params)
    return declare


def test_a_push_pull_of_it_raises(declared):
    push_pull = declared("raise")
    for step, bad in enumerate((np.nan, np.inf, -np.inf)):
        assert np.isfinite(push_pull(*gradient(2 * step))).all()
        with pytest.raises(mx.MXNetError, match=f"tensor 'x' has .* in step {2 * step + 2}"):
            push_pull(*gradient(2 * step + 1, bad))


def test_a_push_pull_of_it_is_skipped(declared):
    push_pull = declared("skip")
    for bad in (np.nan, np.inf, -np.inf):
        assert push_pull(*gradient(0)).any()
        np.testing.assert_array_equal(push_pull(*gradient(1, bad)), np.zeros(N))


def test_a_push_pull_propagates_it(declared):
    push_pull = declared("propagate")
    for bad in (np.nan, np.inf, -np.inf):
        assert np.isfinite(push_pull(*gradient(0))).all()
        assert not np.isfinite(push_pull(*gradient(1, bad))).all()


def test_a_push_pull_raises_unasked_only_where_it_is_compressed(declared):
    push_pull = declared(None)
    if declared.compressed:
        with pytest.raises(mx.MXNetError, match="tensor 'x' has a NaN or an infinity in step 1"):
            push_pull(*gradient(0, np.nan))
    else:
        assert np.isnan(push_pull(*gradient(0, np.nan))[7])


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_push_pull_that_is_skipped_may_have_any_shape_and_dtype(declared, shape):
    push_pull = declared("skip")
    np.testing.assert_array_equal(push_pull(np.full(shape, np.inf, np.float16)), np.zeros(shape))


def test_integers_have_nothing_to_be_skipped(declared):
    np.testing.assert_array_equal(declared("skip")(np.arange(N, dtype=np.int32)), np.arange(N))


def test_a_wish_for_a_push_pull_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="on_nonfinite must be one of .*, got 'ignore'"):
        bps.byteps_declare_tensor("x", "ignore")


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_what_is_decoded_to_more_than_float16_holds_counts(on_nonfinite):
    """A level of l2 is a fraction of the norm, which is here 22 times the largest float16."""
    params, trainer = make(
        [(N,)],
        {"learning_rate": 1.0, "multi_precision": True},
        {**COMPRESSORS["dithering l2"], "k": 2},
        dtype="float16",
        on_nonfinite=on_nonfinite,
    )
    backward(params, [np.full(N, 65504, np.float16)])
    trainer.step(1)
    if on_nonfinite == "raise":
        with pytest.raises(mx.MXNetError, match="the gradient of p0 has a NaN or an infinity"):
            params[0].data().asnumpy()
    else:
        np.testing.assert_array_equal(params[0].data().asnumpy(), np.ones(N))


def test_a_float16_infinity_under_amp_is_a_step_that_is_skipped(compression):
    params, trainer = make(
        [(N,)],
        {"learning_rate": 0.125, "momentum": 0.9, "multi_precision": True},
        {**compression, "ef": "vanilla"},
        dtype="float16",
    )
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), 1.0
    weights, scales, kept = [], [], []
    for bad in (None, np.inf, -np.inf, np.nan, None):
        (values,) = gradient(0, bad)
        backward(params, [values.astype(np.float16)])
        trainer.step(1)
        weights.append(params[0].data().asnumpy())
        scales.append(trainer._amp_loss_scaler.loss_scale)
        kept.append(
            dict(tensor_states.state(trainer._averaging.exchange, trainer._averaging.names()))
        )
    for step in (1, 2, 3):
        np.testing.assert_array_equal(weights[step], weights[0])
        for name, array in kept[step].items():
            np.testing.assert_array_equal(array, kept[0][name])
    assert scales[3] == scales[1] / 4  # MXNet halves the scale one step late
    assert np.isfinite(weights[4]).all() and (weights[4] != weights[0]).any()


COMPRESSED_OR_NOT = pytest.mark.parametrize(
    "params", [None, {"fp16": True}, ONEBIT], ids=["uncompressed", "float16", "onebit"]
)


def steps_with_a_nan(params, on_nonfinite):
    """Train three steps with gradient 1; worker 0's gradient has a NaN in the second step."""
    weights = parameters([(64,)])
    trainer = bps.DistributedTrainer(
        weights,
        "sgd",
        {"learning_rate": 1.0},
        compression_params=params,
        on_nonfinite=on_nonfinite,
    )
    for step in range(3):
        values = np.ones(64, np.float32)
        if step == 1 and bps.rank() == 0:
            values[5] = np.nan
        backward(weights, [values])
        trainer.step(1)
        yield weights[0].data().asnumpy()


@COMPRESSED_OR_NOT
@on_workers(2, "servers", "horovod")
def test_all_workers_raise_what_one_of_them_has(params):
    steps = steps_with_a_nan(params, "raise")
    next(steps)
    with pytest.raises(mx.MXNetError, match="gradient of p0 has a NaN or an infinity in step 2"):
        next(steps)


@COMPRESSED_OR_NOT
@on_workers(2)
def test_all_workers_skip_what_one_of_them_has(params):
    first, second, third = steps_with_a_nan(params, "skip")
    np.testing.assert_array_equal(first, np.zeros(64))
    np.testing.assert_array_equal(second, first)
    np.testing.assert_allclose(third, -np.ones(64))


def overflowing(**more):
    """Overflow worker 0's gradient in the first step; the weights and scales are those of all."""
    amp.init()
    (param,) = params = parameters([(64,)])
    more = {"optimizer": "sgd", "compression_params": ONEBIT, **more}
    trainer = bps.DistributedTrainer(params, optimizer_params={"learning_rate": 1.0}, **more)
    amp.init_trainer(trainer)
    weights, scales = [], []
    for step in range(3):
        with mx.autograd.record():
            factor = float("inf") if step == 0 and bps.rank() == 0 else 1.0
            with amp.scale_loss((param.data() * factor).sum(), trainer) as loss:
                loss.backward()
        trainer.step(1)
        weights.append(param.data().asnumpy())
        scales.append(trainer._amp_loss_scaler.loss_scale)
    np.testing.assert_allclose(weights, np.ones(64) * [[1], [0], [-1]], atol=1e-4)
    assert scales == [65536, 32768, 32768]


@pytest.mark.parametrize(
    "more",
    [{}, {"optimizer": "adam", "algorithm": {"name": "onebit_adam", "freeze_step": 1}}],
    ids=["sgd", "onebit_adam"],
)
def test_an_overflow_on_one_worker_makes_all_leave_the_step_out(tmp_path, more):
    with start_cluster(tmp_path, overflowing, more) as cluster:  # amp.init cannot be undone
        cluster.wait_for_end()


def test_another_wish_is_refused():
    with pytest.raises(ValueError, match="on_nonfinite must be one of .*, got 'ignore'"):
        trained(None, "ignore")


def test_without_a_meter_it_is_said_of_each_slice():
    values, results = mx.nd.array([1, 2, np.nan, 4]), [mx.nd.zeros(3), mx.nd.zeros(1)]
    where = dict(gradients=2, tensors="0,0,1,", begins="0,1,0,", sizes="1,2,1,")
    flags = operators.call("defuse", (values, *results), metered=0, checked="1,1,1,", **where)
    assert flags.dtype == np.int64 and flags.asnumpy().tolist() == [0, 1, 0]
    assert results[0].asnumpy()[:2].tolist() == [1, 2] and results[1].asscalar() == 4

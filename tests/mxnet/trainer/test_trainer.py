"""DistributedTrainer in one process: gluon.Trainer's features, and its own."""

import copy
from collections import OrderedDict, deque

import mxnet as mx
import numpy as np
import pytest
from common.stats import stats_table
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import Parameter, ParameterDict, Trainer

import gluon_gc as bps
from gluon_gc.mxnet.byteps import runtime
from tests.mxnet.cluster.jobs import backward, gradients, make, train

ONEBIT = {"compressor": "onebit", "ef": "vanilla", "scaling": True}
NESTEROV = {**ONEBIT, "momentum": "nesterov"}


def as_list(params):
    return params


def as_dict(params):
    return {param.name: param for param in params}


def as_parameter_dict(params):
    result = ParameterDict()
    for param in params:
        result._params[param.name] = param
    return result


@pytest.mark.parametrize("form", [as_list, as_dict, as_parameter_dict])
def test_parameters_may_come_in_every_form_of_gluon_and_dicts_are_not_changed(form):
    param = Parameter("p", shape=(3,))
    param.initialize()
    given = form([param])
    optimizer_params, compression_params = {"learning_rate": 1, "momentum": 0.9}, dict(NESTEROV)
    bps.DistributedTrainer(
        given, "sgd", optimizer_params, compression_params=compression_params, kvstore="local"
    )
    assert optimizer_params == {"learning_rate": 1, "momentum": 0.9}
    assert compression_params == NESTEROV


@pytest.mark.parametrize("form", [as_list, as_dict, as_parameter_dict])
def test_the_last_layers_gradients_are_exchanged_first(form, monkeypatch):
    params = [Parameter(name, shape=(2, size)) for name, size in [("c", 1), ("a", 2), ("b", 3)]]
    for param in params:
        param.initialize(mx.init.Constant(1.0))
    trainer = bps.DistributedTrainer(
        form(params), "sgd", {"learning_rate": 1}, compression_params=ONEBIT, kvstore="local"
    )
    exchanged = []

    def exchange(channels, *_):
        exchanged.extend(chunk.size for channel in channels for chunk in channel.chunks)

    monkeypatch.setattr(trainer._averaging.exchange, "_exchange", exchange)
    trainer.allreduce_grads()
    assert exchanged == [6, 4, 2]


@pytest.mark.parametrize(
    "optimizer_params",
    [
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        {"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.5)},
    ],
)
def test_uncompressed_and_alone_it_does_what_gluons_trainer_does(optimizer_params):
    shapes = [(4, 3), (5,)]
    params, trainer = make(shapes, copy.deepcopy(optimizer_params))
    ours = train(params, trainer, shapes, 6)
    params, _ = make(shapes, {})
    theirs = train(params, Trainer(params, "sgd", copy.deepcopy(optimizer_params)), shapes, 6)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class CountsCalls(mx.lr_scheduler.LRScheduler):
    """A scheduler that must be called as often as MXNet calls it; its rates depend on all calls."""

    def __init__(self):
        super().__init__(base_lr=0.5)
        self.calls, self.inner = [], mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0)

    def __call__(self, num_update):
        self.calls.append(num_update)
        return self.inner(num_update) * self.base_lr / len(self.calls)


class Halves(mx.lr_scheduler.LRScheduler):
    """A scheduler whose state is in a container or an object. Each call halves the rate."""

    def __init__(self, state, following):
        super().__init__(base_lr=0.5)
        self.state, self.following = state, following

    def __call__(self, num_update):
        return self.following(self.state)


def first_of_array(array):
    array /= 2
    return float(array[0])


class Helper:
    rate = 0.5

    def following(self, _):
        self.rate /= 2
        return self.rate


RATES = [0.5**number for number in range(40)]
SCHEDULERS = {
    "calls": CountsCalls,
    "factor": lambda: mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.5),
    "steps": lambda: mx.lr_scheduler.MultiFactorScheduler([2, 4], 0.5, base_lr=0.5),
    "poly": lambda: mx.lr_scheduler.PolyScheduler(6, base_lr=0.5, warmup_steps=2),
    "cosine": lambda: mx.lr_scheduler.CosineScheduler(6, base_lr=0.5, final_lr=0.1),
    "deque": lambda: Halves(deque(RATES), deque.popleft),
    "dict": lambda: Halves(OrderedDict.fromkeys(RATES), lambda left: left.popitem(last=False)[0]),
    "array": lambda: Halves(np.array([1.0]), first_of_array),
    "iterator": lambda: Halves(iter(RATES), next),
    "helper": lambda: Halves(None, Helper().following),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lbsgd"])
@pytest.mark.parametrize("compression", [None, {**ONEBIT, "ef": "corrected"}])
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_is_asked_only_by_the_optimizer(optimizer, compression, scheduler, monkeypatch):
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "1000")  # so the gradients stay as they are
    shapes, weights = [(4, 3), (5,)], []
    for ours in (True, False):
        settings = {"lr_scheduler": scheduler()}
        params, trainer = make(shapes, settings, compression, optimizer=optimizer)
        if not ours:
            settings = {"lr_scheduler": scheduler()}
            trainer = Trainer(params, optimizer, settings)
        weights.append(train(params, trainer, shapes, 7))
    for a, b in zip(*weights):
        np.testing.assert_array_equal(a, b)


def generated():
    return Halves((rate for rate in RATES), next)


@pytest.mark.parametrize("compression", [None, ONEBIT])
def test_a_scheduler_that_cannot_be_copied_is_not_asked_ahead(compression):
    params, trainer = make([(4, 3), (5,)], {"lr_scheduler": generated()}, compression)
    train(params, trainer, [(4, 3), (5,)], 2)
    assert trainer.learning_rate == RATES[2]


def test_corrected_feedback_names_a_scheduler_that_cannot_be_copied():
    params, trainer = make([(5,)], {"lr_scheduler": generated()}, {**ONEBIT, "ef": "corrected"})
    with pytest.raises(TypeError, match=r"'corrected' .* Halves cannot be copied .*generator"):
        train(params, trainer, [(5,)], 1)
    assert trainer.learning_rate == RATES[0]


def test_a_copied_scheduler_shares_the_network_that_it_reads():
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    net.hybridize()
    scheduler = Halves(net, lambda own: float(own(mx.nd.ones((1, 2))).asscalar()))
    settings = {"lr_scheduler": scheduler}
    params, trainer = make([(5,)], settings, {**ONEBIT, "ef": "corrected"})
    train(params, trainer, [(5,)], 2)
    assert trainer._averaging.learning_rates.last == {0: 2.0}


def test_nadam_has_one_schedule_for_all_contexts():
    shapes, settings = [(6, 7), (3,)], {"learning_rate": 0.1}
    both, trainer = make(shapes, settings, contexts=2, optimizer="nadam")
    train(both, trainer, shapes, 5, batch_size=4)
    one, trainer = make(shapes, settings, optimizer="nadam")
    expected = train(one, trainer, shapes, 5, batch_size=2)
    for param, weight in zip(both, expected):
        for copied in param.list_data():
            np.testing.assert_allclose(copied.asnumpy(), weight, rtol=1e-5)


@pytest.mark.parametrize("params", [None, NESTEROV], ids=["uncompressed", "onebit"])
def test_every_context_gets_the_sum_of_all_contexts(params):
    shapes, optimizer_params = [(6, 7), (3,)], {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    both, trainer = make(shapes, optimizer_params, params, contexts=2)
    train(both, trainer, shapes, 5, batch_size=4)
    one, trainer = make(shapes, optimizer_params, params)
    expected = train(one, trainer, shapes, 5, batch_size=2)
    for param, weight in zip(both, expected):
        for ctx in param.list_ctx():
            np.testing.assert_allclose(param.data(ctx).asnumpy(), weight, rtol=1e-5, atol=1e-6)


def test_gradients_can_be_clipped_between_allreduce_and_update():
    params, trainer = make(
        [(100,)], {"learning_rate": 1.0}, {"compressor": "onebit", "scaling": True}
    )
    backward(params, [np.full(100, 8.0, np.float32)])
    trainer.allreduce_grads()
    np.testing.assert_array_equal(params[0].grad().asnumpy(), np.full(100, 8.0))
    mx.gluon.utils.clip_global_norm(params[0].list_grad(), 20.0)
    trainer.update(4)
    np.testing.assert_allclose(params[0].data().asnumpy(), np.full(100, 1 - 0.5), rtol=1e-5)


@pytest.mark.parametrize("loss_scaler", [None, LossScaler])
@pytest.mark.parametrize("before", ["nothing", "step", "separate", "skipped"])
def test_an_update_without_averages_is_that_of_gluons_trainer(before, loss_scaler):
    shapes, optimizer = [(4, 3), (5,)], {"learning_rate": 0.1, "rescale_grad": 0.5}

    def run(params, trainer, ours):
        if loss_scaler is not None:
            trainer._amp_loss_scaler, trainer._amp_original_scale = loss_scaler(), 0.5

        def run_backward(number, bad=False):
            values = gradients(number, shapes)
            if loss_scaler is not None:
                scale = trainer._amp_loss_scaler.loss_scale
                trainer._scale = 0.5 / scale  # as amp.scale_loss does
                values = [value * np.float32(scale) for value in values]
            if bad:
                values[1][2] = np.inf
            backward(params, values)

        if before != "nothing" and (ours or before != "skipped" or loss_scaler):
            run_backward(0, bad=before == "skipped")
            if before == "separate":
                trainer.allreduce_grads(8)
                trainer.update(8)
            else:
                trainer.step(8)
        for number in (1, 2, 3):
            run_backward(number, bad=number == 2 and loss_scaler is not None)
            trainer.update(4)
        scaler = trainer._amp_loss_scaler if loss_scaler is not None else None
        return [param.data().asnumpy() for param in params], scaler and scaler.loss_scale

    ours, our_scale = run(*make(shapes, dict(optimizer), on_nonfinite="skip"), ours=True)
    params, _ = make(shapes, {})
    stock = Trainer(params, "sgd", dict(optimizer), kvstore=None)
    stock.allreduce_grads = lambda _: None
    theirs, scale = run(params, stock, ours=False)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert our_scale == scale


def summed(trainer, params, batch_size, *given):
    """Make a step in separate calls, where each sample has the same gradient."""
    backward(params, [batch_size * np.linspace(1, 3, 100, dtype=np.float32)])
    trainer.allreduce_grads(*given)
    trainer.update(batch_size)


@pytest.mark.parametrize("params", [ONEBIT, NESTEROV], ids=["feedback", "momentum"])
def test_separate_calls_with_a_batch_size_are_a_step(params, logged):
    optimizer = {"learning_rate": 0.5, "momentum": 0.9}
    (one,), apart = make([(100,)], optimizer, params, max_grad_norm=2.0)
    (other,), together = make([(100,)], optimizer, params, max_grad_norm=2.0)
    for batch_size in (8, 8, 2, 8):
        summed(apart, [one], batch_size, batch_size)
        backward([other], [batch_size * np.linspace(1, 3, 100, dtype=np.float32)])
        together.step(batch_size)
        np.testing.assert_array_equal(one.data().asnumpy(), other.data().asnumpy())
    assert "the batch size of update()" not in logged.text
    backward([one], [np.ones(100, np.float32)])
    apart.allreduce_grads(4)
    with pytest.raises(ValueError, match="batch_size must be 4 as in allreduce_grads, got 5"):
        apart.update(5)


@pytest.mark.parametrize("loss_scaler", [None, LossScaler])
@pytest.mark.parametrize("given", [(), (8,)], ids=["later", "at once"])
def test_a_step_that_is_left_out_has_the_batch_size_of_its_exchange(loss_scaler, given, logged):
    params, trainer = make([(100,)], {"learning_rate": 0.5}, ONEBIT, on_nonfinite="skip")
    if loss_scaler is not None:
        trainer._amp_loss_scaler, trainer._amp_original_scale = loss_scaler(), 1.0
    for value in (1, np.inf, 1, np.inf):
        backward(params, [np.full(100, value, np.float32)])
        trainer.allreduce_grads(*given)
        trainer.update(8)
    backward(params, [np.full(100, np.inf, np.float32)])
    trainer.allreduce_grads(8)
    with pytest.raises(ValueError, match="batch_size must be 8 as in allreduce_grads, got 5"):
        trainer.update(5)
    assert "the batch size of update()" not in logged.text


@pytest.mark.parametrize(
    "params, warnings",
    [(ONEBIT, 1), ({"compressor": "onebit", "momentum": "nesterov"}, 1), (None, 0)],
)
def test_a_batch_size_that_changes_after_compression_is_warned_of_once(params, warnings, logged):
    optimizer = {"learning_rate": 0.5, "momentum": 0.9}
    weights, trainer = make([(100,)], optimizer, params)
    summed(trainer, weights, 8)
    summed(trainer, weights, 8)
    assert "the batch size of update()" not in logged.text
    for batch_size in (2, 8, 2):
        summed(trainer, weights, batch_size)
    said = [line for line in logged.messages if "the batch size of update() has changed" in line]
    assert len(said) == warnings and all("changed to 2, but" in line for line in said)


def test_grad_req_add_sends_what_was_accumulated():
    params, trainer = make(
        [(10,)], {"learning_rate": 1.0}, {"compressor": "onebit", "scaling": True}, grad_req="add"
    )
    params[0].zero_grad()
    for _ in range(2):
        backward(params, [np.ones(10, np.float32)])
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), np.full(10, -1.0))


def test_parameters_without_gradient_are_left_out_and_may_be_frozen_and_thawed():
    shapes = [(10,), (20,)]
    params, trainer = make(shapes, {"learning_rate": 1.0})
    params[1].grad_req = "null"
    for step in range(2):
        backward(params[:1], gradients(step, shapes[:1]))
        trainer.step(1)
    np.testing.assert_array_equal(params[1].data().asnumpy(), np.ones(20))
    params[1].grad_req = "write"
    train(params, trainer, shapes, 1)
    assert (params[1].data().asnumpy() != 1).all()
    params[0].grad_req = "null"
    before = params[0].data().asnumpy()
    backward(params[1:], gradients(3, shapes[1:]))
    trainer.step(1)
    np.testing.assert_array_equal(params[0].data().asnumpy(), before)


def test_a_parameters_own_compression_params_win():
    params = [Parameter(f"p{i}", shape=(320,)) for i in range(3)]
    for param in params:
        param.initialize()
    params[1].compression_params = None
    params[2].compression_params = {"compressor": "onebit", "ef": "corrected"}
    trainer = bps.DistributedTrainer(params, "sgd", compression_params=ONEBIT, kvstore="local")
    backward(params, gradients(0, [(320,)] * 3))
    trainer.step(1)
    tensors = trainer.compression_stats()["tensors"]
    assert [tensors[f"p{i}"]["pushed_bytes"] for i in range(3)] == [44, 1280, 52]


def test_compression_stats_add_up():
    shapes = [(1000,), (10,)]
    params, trainer = make(shapes, {"learning_rate": 0.1}, ONEBIT)
    train(params, trainer, shapes, 1)
    stats = trainer.compression_stats()
    assert stats["total"]["raw_bytes"] == 4040
    for key in ("raw_bytes", "pushed_bytes", "pulled_bytes"):
        assert stats["total"][key] == sum(t[key] for t in stats["tensors"].values())
    assert stats["total"]["ratio"] == pytest.approx(4040 / stats["total"]["pushed_bytes"])


def test_where_nothing_is_sent_there_is_no_ratio(monkeypatch):
    params, trainer = make([(1000,)], {"learning_rate": 0.1}, ONEBIT)
    train(params, trainer, [(1000,)], 1)
    monkeypatch.setattr(trainer._averaging.exchange, "message_bytes", lambda *_: (0.0, 0.0))
    stats = trainer.compression_stats()
    assert stats["total"]["ratio"] is stats["tensors"]["p0"]["ratio"] is None
    assert stats["total"]["bits_per_element"] == 0
    table = stats_table(stats)
    assert [line.split()[4] for line in table.splitlines() if line[:5] in ("p0   ", "total")] == [
        "-"
    ] * 2


def test_compression_stats_start_again_when_they_are_reset():
    shapes = [(4000,)]
    params, trainer = make(shapes, {"learning_rate": 0.1}, {"compressor": "dithering", "k": 2})

    def pushed(gradient, reset):
        backward(params, [gradient])
        trainer.step(1)
        return trainer.compression_stats(reset=reset)["total"]["pushed_bytes"]

    (dense,) = gradients(0, shapes)
    sparse = np.where(np.arange(4000) < 10, dense, np.float32(0))
    of_dense = pushed(dense, reset=False)
    mixed = pushed(sparse, reset=True)
    of_sparse = pushed(sparse, reset=False)
    assert of_sparse < 0.1 * of_dense
    assert mixed == pytest.approx((of_dense + of_sparse) / 2, rel=0.02)
    again = trainer.compression_stats()["total"]
    assert again["pushed_bytes"] == of_sparse and again["compress_seconds"] > 0


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_keep_theirs(dtype):
    param = Parameter("p", shape=(50,), dtype=dtype)
    param.initialize(mx.init.Constant(1.0))
    trainer = bps.DistributedTrainer(
        [param], "sgd", {"learning_rate": 1.0}, compression_params=ONEBIT, kvstore="local"
    )
    with mx.autograd.record():
        loss = param.data().sum()
    loss.backward()
    trainer.step(2)
    assert param.grad().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(param.data().asnumpy(), np.full(50, 0.5, dtype))


def test_two_trainers_may_share_parameters_that_are_not_initialized_yet():
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    for _ in range(2):
        bps.DistributedTrainer(net.collect_params(), "sgd", kvstore="local")
    assert net(mx.nd.ones((2, 4))).shape == (2, 3)


def test_a_network_that_is_not_initialized_yet_can_be_copied(monkeypatch):
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", kvstore="local")
    broadcast = []
    monkeypatch.setattr(
        trainer._averaging.exchange, "broadcast", lambda *args: broadcast.append(args)
    )
    other = copy.deepcopy(net)
    assert other(mx.nd.ones((2, 4))).shape == (2, 3)
    assert net.weight._data is None and not broadcast
    assert net(mx.nd.ones((2, 5))).shape == (2, 3)
    assert len(broadcast) == 1 and other.weight.shape == (3, 4)


def test_a_distributed_optimizer_is_unwrapped_since_the_trainer_averages_already():
    param = Parameter("p", shape=(3,))
    param.initialize(mx.init.Zero())
    optimizer = mx.optimizer.SGD(learning_rate=1.0)
    with pytest.warns(UserWarning, match="unwraps the DistributedOptimizer"):
        trainer = bps.DistributedTrainer(
            [param], bps.DistributedOptimizer(optimizer), kvstore="local"
        )
    assert trainer.optimizer is optimizer
    backward([param], [np.ones(3, np.float32)])
    trainer.step(2)
    np.testing.assert_array_equal(param.data().asnumpy(), -0.5)


def test_wrong_arguments_are_refused():
    with pytest.raises(
        ValueError, match="kvstore must be 'local', 'dist_sync' or 'horovod', got 'nccl'"
    ):
        make([(1,)], {}) and bps.DistributedTrainer([], "sgd", kvstore="nccl")
    for theirs in ("device", "dist_async"):
        with pytest.raises(ValueError, match=f"got '{theirs}', which is MXNet's own: leave it out"):
            bps.DistributedTrainer([], "sgd", kvstore=theirs)
    with pytest.raises(ValueError, match="update_on_kvstore must be None or False, got True: the"):
        bps.DistributedTrainer([], "sgd", kvstore="local", update_on_kvstore=True)
    make([(1,)], {}, update_on_kvstore=False)
    with pytest.raises(TypeError, match="kvstore must be"):
        bps.DistributedTrainer([], "sgd", kvstore=3)
    with pytest.raises(ValueError, match=r"root_rank must be in \[0, 1\), got 1"):
        bps.DistributedTrainer([], "sgd", kvstore="local", root_rank=1)
    with pytest.raises(TypeError, match="an mxnet Optimizer, got Trainer: pass its optimizer's"):
        bps.DistributedTrainer([], Trainer(make([(1,)], {})[0], "sgd"), kvstore="local")
    with pytest.raises(TypeError, match="an mxnet Optimizer, got int$"):
        bps.DistributedTrainer([], 3, kvstore="local")


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"stype": "row_sparse", "grad_stype": "row_sparse"}, "dense weights, got stype 'row_sp"),
        ({"dtype": np.dtype([("bfloat16", np.uint16)])}, "float16 or float64, got bfloat16"),
        ({"dtype": "bfloat16"}, "float16 or float64, got bfloat16"),
    ],
)
def test_weights_that_cannot_be_broadcast_are_refused_by_name(settings, said):
    param = Parameter("w", shape=(4, 3), **settings)
    with pytest.raises(ValueError, match=f"parameter w must .*{said}"):
        bps.DistributedTrainer([param], "sgd", kvstore="local")


@pytest.mark.parametrize(
    "batch_size, error",
    [
        (-1, ValueError),
        (0, ValueError),
        (0.0, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        ("8", TypeError),
        (None, TypeError),
        (True, TypeError),
        ([8], TypeError),
    ],
)
def test_a_batch_size_is_a_positive_number(batch_size, error, monkeypatch):
    params, trainer = make([(4,)], {"learning_rate": 1.0}, ONEBIT)
    backward(params, gradients(0, [(4,)]))
    monkeypatch.setattr(trainer._averaging.exchange, "start", lambda *_: pytest.fail("exchanged"))
    for method in (trainer.step, trainer.update):
        with pytest.raises(error, match="batch_size must be .*, got") as raised:
            method(batch_size)
        assert repr(batch_size) in str(raised.value)
    np.testing.assert_array_equal(params[0].data().asnumpy(), 1)


@pytest.mark.parametrize("batch_size", [2, 2.0, np.int64(2), np.float32(2)])
def test_a_batch_size_may_be_any_number(batch_size):
    params, trainer = make([(4,)], {"learning_rate": 1.0})
    backward(params, [np.ones(4, np.float32)])
    trainer.step(batch_size)
    np.testing.assert_array_equal(params[0].data().asnumpy(), 0.5)


def test_a_trainer_says_what_is_compressed_how(monkeypatch, logged):
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "4000")
    shapes = [(40, 50), (7,), (8,), (9,)]
    params, trainer = make(shapes, {"learning_rate": 0.1, "momentum": 0.9}, NESTEROV)
    params[2].compression_params = {"fp16": True}
    params[3].compression_params = None
    trainer = bps.DistributedTrainer(
        params, trainer.optimizer, compression_params=NESTEROV, kvstore="local"
    )
    head = "DistributedTrainer: SGD, local, worker 0 of 1"
    given = (
        "{'compressor': 'onebit', 'ef': 'vanilla', 'momentum': 'nesterov', 'exchange': 'two_way', "
        "'scaling': True}, momentum 0.9"
    )
    assert repr(trainer) == f"{head}\n  no gradients yet: {given}"
    with logged.at_level("INFO", "gluon_gc"):
        train(params, trainer, shapes, 2)
    gradients = (
        f"2 gradients of 2,007 elements, in 3 chunks and 1 message: {given}",
        "1 gradient of 8 elements, in 1 chunk and 1 message: uncompressed, float16",
        "1 gradient of 9 elements, in 1 chunk and 1 message: uncompressed, float32",
    )
    assert sorted(repr(trainer).split("\n  ")) == sorted([head, *gradients])
    assert logged.messages == ["; ".join(repr(trainer).split("\n  "))]


@pytest.mark.parametrize(
    "compression, said",
    [
        (None, "uncompressed"),
        ({"fp16": True}, "{'fp16': True}"),
        (
            {"compressor": "randomk", "k": 0.1, "scaling": False},
            "{'compressor': 'randomk', 'exchange': 'two_way', 'k': 0.1, 'scaling': False}",
        ),
    ],
)
def test_a_trainer_says_its_compression_before_the_first_step(compression, said):
    _, trainer = make([(4,)], {}, compression)
    assert repr(trainer).endswith(f"no gradients yet: {said}")


@pytest.mark.parametrize("call", [bps.rank, bps.barrier, lambda: bps.byteps_push_pull(1)])
def test_what_needs_a_cluster_says_why_there_is_none(call, monkeypatch):
    monkeypatch.setattr(runtime, "_was_connected", False)
    with pytest.raises(RuntimeError, match="not been initialized; call bps.init\\(\\) first"):
        call()
    bps.shutdown()
    with pytest.raises(RuntimeError, match="not been initialized"):
        call()
    bps.init()
    bps.suspend()
    with pytest.raises(RuntimeError, match="has been suspended; call bps.resume\\(\\) first"):
        call()
    bps.resume(1, 1)
    bps.shutdown()
    with pytest.raises(RuntimeError, match="has been shut down; call bps.init\\(\\) to go on"):
        call()


def test_a_trainer_says_that_its_cluster_is_gone():
    bps.init()
    param = Parameter("p", shape=(4,))
    param.initialize()
    trainer = bps.DistributedTrainer([param], "sgd")
    backward([param], gradients(0, [(4,)]))
    bps.shutdown()
    with pytest.raises(RuntimeError, match="has been shut down"):
        trainer.step(1)


def test_inner_compressors_are_for_pytorch():
    params = {"compressor": "onebit", "inner": {"compressor": "blockwise"}}
    said = r"compression_params\['inner'\] is for PyTorch's CompressionState"
    with pytest.raises(ValueError, match=said):
        bps.byteps_declare_tensor("t", **params)
    with pytest.raises(ValueError, match=said):
        mx.kv.create("GluonGCLocal").set_gradient_compression(params)
    parameter = mx.gluon.Parameter("p", shape=(3,))
    parameter.initialize()
    with pytest.raises(ValueError, match=said):
        bps.DistributedTrainer([parameter], "sgd", compression_params=params, kvstore="local")

"""The path of gradients that stay on their GPUs, tested with CPU devices in place of GPUs.

tests/cu112 tests MXNet for CUDA and the kernels.
"""

import mxnet as mx
import numpy as np
import pytest

from gluon_gc import kernels
from gluon_gc.compression import parse
from gluon_gc.exchange import plan
from gluon_gc.exchange.plan import Slice, Tensor
from gluon_gc.log import logger
from gluon_gc.mxnet.engine.operators import clip_factor
from gluon_gc.mxnet.exchange.coder import MessageCoder
from gluon_gc.mxnet.exchange.gradient import Gradient, Job, sums_of
from gluon_gc.mxnet.kvstore.local import Local
from gluon_gc.mxnet.state import tensor_states
from tests.compressors import COMPRESSORS

DEVICES = (mx.cpu(1), mx.cpu(2))
SIZES = {"a": 1000, "b": 70, "c": 9000, "d": 1}
each = pytest.mark.parametrize("name", [*COMPRESSORS, "none", "fp16"])


@pytest.fixture
def cut(monkeypatch):
    """Make several messages: some with a part of a tensor, some with several tensors."""
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "16000")
    monkeypatch.setenv("BYTEPS_MIN_COMPRESS_BYTES", "0")
    monkeypatch.setattr(plan, "SMALL_BYTES", 300)


@pytest.fixture
def devices(cut, monkeypatch):
    """Treat DEVICES as GPUs."""
    gpus = property(lambda gradient: gradient.contexts)
    make = Gradient.__init__

    def make_from_gpus(gradient, *given):
        make(gradient, *given)
        gradient.from_gpus = True

    monkeypatch.setattr(Gradient, "__init__", make_from_gpus)
    monkeypatch.setattr(Gradient, "gpus", gpus)
    monkeypatch.setattr(MessageCoder, "runs_on_gpu", True)
    monkeypatch.setattr(kernels, "runs_on_gpu", lambda name: True)
    monkeypatch.setattr(mx, "cpu_pinned", mx.cpu)


PLAIN = {"none": {}, "fp16": {"fp16": True}}


def exchange_of(name, dtype):
    fed = {"ef": "vanilla", "momentum": "nesterov"}
    params = parse(PLAIN[name] if name in PLAIN else {**COMPRESSORS[name], **fed}, 0.9)
    exchange = Local()
    exchange.declare(Tensor(t, n, dtype, params, i) for i, (t, n) in enumerate(SIZES.items()))
    return exchange


def train(exchange, contexts, dtype, missing=(), out_of_place=False, max_norm=None):
    """Return the averages of some steps by step, tensor and context, and the state afterwards."""
    results = {}
    for step in range(4):
        random = np.random.default_rng(step)
        ratios = dict.fromkeys(SIZES, 0.5) if step == 2 else {}
        values, outs = {}, {}
        for t, n in SIZES.items():
            copies = random.standard_normal((len(contexts), n)).astype(dtype)
            if t not in missing or step != 1:
                values[t] = [mx.nd.array(x, c, dtype) for x, c in zip(copies, contexts)]
                outs[t] = [x.copy() for x in values[t]] if out_of_place else values[t]
        before = {t: [x.asnumpy() for x in arrays] for t, arrays in values.items()}
        gradients = {t: exchange.channels.gradient(t, values[t], outs[t]) for t in values}
        for gradient in gradients.values():
            gradient.unit = 0.25 if dtype == "float16" else 1.0
        factor = None
        if max_norm is not None:
            factor = clip_factor(sums_of(list(gradients.values())), 1.0, max_norm)
            assert factor.asscalar() < 1
        exchange.start(Job(gradients, 1 / 3, factor, ratios))
        for t, arrays in outs.items():
            results.update({f"{step}/{t}/{i}": x.asnumpy() for i, x in enumerate(arrays)})
            if out_of_place:
                assert all(np.array_equal(x.asnumpy(), y) for x, y in zip(values[t], before[t]))
    for key, array in tensor_states.state(exchange, SIZES.keys()):
        results["/".join(map(str, key[:3]))] = array
    (channel, *_) = exchange.channels
    done = channel.since(None)
    results["done"] = [done["calls"], done["sent_bytes"], done["received_bytes"]]
    return results


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert np.array_equal(a[key], b[key]), key


@each
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [1, 2])
def test_results_and_states_are_those_of_the_cpu(devices, name, dtype, count):
    expected = train(exchange_of(name, dtype), [mx.cpu()], dtype) if count == 1 else None
    exchange = exchange_of(name, dtype)
    results = train(exchange, DEVICES[:count], dtype)
    assert {channel.gpu for channel in exchange.channels} == set(DEVICES[:count])
    if expected:
        assert_same(results, expected)
    else:
        for key in results:
            if key.endswith("/1"):
                assert np.array_equal(results[key], results[f"{key[:-1]}0"])


@pytest.fixture
def ordinary(cut):
    """Return the expected results, with no device treated as a GPU."""
    return [train(exchange_of("onebit", "float32"), DEVICES, "float32", **way) for way in WAYS]


WAYS = ({}, {"missing": ("b", "d")}, {"out_of_place": True}, {"max_norm": 2.0})


def test_copies_of_two_devices_are_summed_and_spread_as_on_the_cpu(ordinary, devices):
    for way, expected in zip(WAYS, ordinary):
        assert_same(train(exchange_of("onebit", "float32"), DEVICES, "float32", **way), expected)


def test_a_gradient_on_one_device_is_clipped_there(cut, devices):
    results = [
        train(exchange_of("onebit", "float32"), [context], "float32", max_norm=2.0)
        for context in (mx.cpu(), DEVICES[0])
    ]
    assert_same(*results)


@each
def test_an_exchange_is_taken_back_after_the_gradients_have_moved(devices, name):
    exchange = exchange_of(name, "float32")
    exchange.keep_earlier(SIZES)
    train(exchange, DEVICES[:1], "float32")
    before = dict(tensor_states.state(exchange, SIZES.keys()))
    for context in (DEVICES[0], DEVICES[1], mx.cpu()):
        values = {t: [mx.nd.ones(n, context)] for t, n in SIZES.items()}
        gradients = {t: exchange.channels.gradient(t, x, x) for t, x in values.items()}
        exchange.start(Job(gradients))
        exchange.take_back(SIZES)
        after = dict(tensor_states.state(exchange, SIZES.keys()))
        assert_same(after, before)


def test_states_move_with_the_gradients(devices):
    states = []
    for moves in (True, False):
        exchange = exchange_of("onebit", "float32")
        for step, device in enumerate((*DEVICES, mx.cpu(), DEVICES[0])):
            value = mx.nd.array(np.arange(SIZES["a"]), device if moves else mx.cpu())
            exchange.sum_in_place({"a": value * (step + 1)})
        states.append(dict(tensor_states.state(exchange, ["a"])))
    assert_same(*states)


def test_a_slice_is_spread_to_targets_elsewhere_and_leaves_the_rest_alone():
    arrays = [mx.nd.array(np.arange(10), context) for context in DEVICES]
    gradient = Gradient(arrays, arrays)
    piece = Slice("a", 3, 7)
    total, begin = gradient.sum_on(DEVICES[0], piece)
    assert total[begin : begin + 4].asnumpy().tolist() == [6, 8, 10, 12]
    room, begin = gradient.room_on(DEVICES[1], piece)
    assert room is arrays[1] and begin == 3
    room[3:7] = mx.nd.array([1, 1, 1, 1], DEVICES[1])
    gradient.broadcast(room, begin, piece)
    gradient.finish()
    for array in arrays:
        assert array.asnumpy().tolist() == [0, 1, 2, 1, 1, 1, 1, 7, 8, 9]


def test_a_library_without_kernels_for_the_gpu_says_so_once(monkeypatch):
    said = []
    monkeypatch.setattr(kernels.library, "gluon_gc_cuda_ready", lambda name: b"no GPU here")
    monkeypatch.setattr(logger, "warning", lambda text, *args: said.append(text % args))
    for source in ("onebit", "topk", "onebit"):
        assert not kernels.runs_on_gpu(source)
    assert said == ["gradients on a GPU are copied to the CPU to be compressed: no GPU here"]


def test_dithering_is_in_fixed_width_where_gradients_are_on_a_gpu():
    params = parse({"compressor": "dithering", "k": 2}, None)
    assert params.on_gpu.options() == {**params.options(), "fixed_width": True}
    assert params.identity() != params.on_gpu.identity()
    assert parse(params.on_gpu.describe(), None) == params.on_gpu
    onebit = parse({"compressor": "onebit"}, None)
    assert onebit.on_gpu == onebit and parse({}, None).on_gpu == parse({}, None)

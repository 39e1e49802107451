"""topk through its operators: what is sent, its state, and what is refused."""

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry

MU = 0.9
TopK = registry["topk"]


@pytest.mark.parametrize(
    "k, n, count",
    [
        (0.01, 1000, 10),
        (0.01, 1099, 10),
        (0.01, 5, 1),
        (0.999, 1000, 999),
        (1, 1000, 1),
        (1000.0, 1000, 1000),
        (1000.0, 999, 999),
        (1e300, 7, 7),
        (1e-300, 7, 1),
    ],
)
def test_k_is_a_share_below_one_and_else_a_number_of_elements(k, n, count):
    params = parse({"compressor": "topk", "k": k})
    x = mx.nd.random.normal(shape=(n,))
    codec = Codec(params, n, "float32")
    payload = codec.compress(x)
    assert params.compressor.count(n) == count
    assert payload.size == codec.payload_bytes == 8 * count
    out = codec.decompress(payload).asnumpy()
    assert np.count_nonzero(out) == count
    kept = out != 0
    np.testing.assert_array_equal(out[kept], x.asnumpy()[kept])
    assert count == n or np.abs(out[kept]).min() >= np.abs(x.asnumpy()[~kept]).max()


def test_every_share_counts_alike_in_python_and_in_the_operator():
    for n in (7, 29, 100, 999):
        x = mx.nd.ones(n)
        for percent in range(1, 100, 3):
            params = CompressionParams(TopK(percent / 100))
            codec = Codec(params, n, "float32")
            assert codec.compress(x).size == params.payload_bytes(n, "float32")


@pytest.mark.parametrize("ef", [None, "vanilla", "corrected"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 31, 1000, 40_000])
def test_a_payload_has_the_length_that_the_plan_reckons_with(ef, dtype, n):
    params = CompressionParams(TopK(0.1), ef)
    payload = Codec(params, n, dtype).compress(mx.nd.ones(n, dtype=dtype))
    assert payload.shape == (params.payload_bytes(n, dtype),)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [0.05, 7])
def test_a_codec_restored_from_its_state_goes_on_bit_for_bit(dtype, k):
    params = CompressionParams(TopK(k), "corrected", 0.9)
    gradients = [mx.nd.random.normal(shape=(333,), dtype=dtype) for _ in range(6)]
    codec, restored = Codec(params, 333, dtype), Codec(params, 333, dtype)
    for gradient in gradients[:3]:
        codec.compress(gradient)
    restored.load_state(codec.state())
    for gradient in gradients[3:]:
        expected = codec.compress(gradient, ratio=0.5).asnumpy()
        np.testing.assert_array_equal(restored.compress(gradient, ratio=0.5).asnumpy(), expected)


def test_the_residual_is_what_was_not_sent():
    codec = Codec(CompressionParams(TopK(2), "vanilla"), 5, "float32")
    codec.compress(mx.nd.array([1, -4, 3, -2, 3]))
    np.testing.assert_array_equal(codec.state()["residual"], [1, 0, 0, -2, 3])


def test_with_all_elements_nothing_is_lost_and_the_aggregate_is_the_sum():
    params = CompressionParams(TopK(1000.0), "vanilla")
    workers = [Codec(params, 100, "float32") for _ in range(3)]
    server = Codec(params, 100, "float32")
    x = [mx.nd.random.normal(shape=(100,)) for _ in workers]
    payloads = mx.nd.stack(*(codec.compress(g) for codec, g in zip(workers, x)))
    out = server.decompress(server.aggregate(payloads)).asnumpy()
    np.testing.assert_array_equal(out, (x[0] + x[1] + x[2]).asnumpy())
    assert not any(codec.state()["residual"].any() for codec in (*workers, server))


@pytest.mark.parametrize("indices", [[3, 1, 5], [1, 1, 5], [1, 5, 100], [2**32 - 3, 1, 2]])
def test_a_payload_with_wrong_indices_is_an_error(indices):
    codec = Codec(CompressionParams(TopK(3)), 100, "float32")
    payload = np.zeros(24, np.uint8)
    payload[:12] = np.array(indices, np.uint32).view(np.uint8)
    good = codec.compress(mx.nd.ones(100)).asnumpy()
    with pytest.raises(mx.MXNetError, match="indices of payload 0 do not ascend below 100"):
        codec.decompress(mx.nd.array(payload, dtype="uint8")).wait_to_read()
    with pytest.raises(mx.MXNetError, match="indices of payload 1 do not ascend below 100"):
        rows = mx.nd.array(np.stack([good, payload]), dtype="uint8")
        codec.aggregate(rows).wait_to_read()


def test_a_payload_of_the_wrong_length_is_an_error():
    codec = Codec(CompressionParams(TopK(3)), 100, "float32")
    with pytest.raises(mx.MXNetError, match="not of the length that 100 elements need"):
        codec.decompress(mx.nd.zeros(16, dtype="uint8")).wait_to_read()


def test_a_sum_of_2_gib_is_refused_since_mxnet_counts_bytes_in_an_int():
    codec = Codec(CompressionParams(TopK(3)), 2**28, "float64")
    with pytest.raises(mx.MXNetError, match="at most 2147483647 bytes, got 2147483648"):
        codec.aggregate(mx.nd.zeros((1, 36), dtype="uint8")).wait_to_read()


@pytest.mark.parametrize("k", [0.01, 1000.0, 3, np.float32(0.25), np.int64(12)])
def test_described_params_are_read_back_as_they_were(k):
    params = parse({"compressor": "topk", "k": k, "ef": "corrected"})
    assert params == CompressionParams(TopK(float(k)), "corrected")
    assert parse(params.describe()) == params


def test_what_byteps_scripts_pass_is_understood():
    params = parse(
        {
            "compressor": "topk",
            "k": 1000.0,
            "ef": "vanilla",
            "momentum": "nesterov",
            "scaling": False,
            "normalize": "max",
            "partition": "linear",
            "fp16": False,
        },
        MU,
    )
    assert params == CompressionParams(TopK(1000), "vanilla", 0.9)


K_RULE = "['k'] must be a share between 0 and 1 or a whole number >= 1, got "


@pytest.mark.parametrize(
    "more, error, message",
    [
        ({}, KeyError, "compression_params['k'] is missing; topk needs a share"),
        ({"k": None}, KeyError, "compression_params['k'] is missing"),
        ({"k": 0}, ValueError, K_RULE + "0"),
        ({"k": -3}, ValueError, K_RULE + "-3"),
        ({"k": 1.5}, ValueError, K_RULE + "1.5"),
        ({"k": float("nan")}, ValueError, K_RULE + "nan"),
        ({"k": float("inf")}, ValueError, K_RULE + "inf"),
        ({"k": "10"}, TypeError, K_RULE + "'10' (str)"),
        ({"k": True}, TypeError, K_RULE + "True (bool)"),
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(more, error, message):
    with pytest.raises(error) as raised:
        parse({"compressor": "topk", **more}, MU)
    assert message in raised.value.args[0]

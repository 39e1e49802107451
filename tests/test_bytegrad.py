"""bytegrad through its operators: what is sent, its error both ways, and what is refused."""

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry
from tests.distributed.cluster import run
from tests.distributed.test_two_way import arguments, assert_identical, check_replay
from tests.test_trainer import backward, make

ByteGrad = registry["bytegrad"]


def length_of(payload):
    return int(payload.asnumpy()[:4].view(np.uint32)[0])


@pytest.mark.parametrize("ef", [None, "vanilla", "corrected"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 16, 33, 1000])
def test_a_payload_is_a_byte_an_element_as_the_plan_reckons_with(ef, dtype, n):
    params = CompressionParams(ByteGrad(), ef)
    most = params.payload_bytes(n, dtype)
    assert most == params.header_bytes + 4 + 2 * np.dtype(dtype).itemsize + n
    for x, length in ((mx.nd.arange(n), most - n * (n == 1)), (mx.nd.ones(n), most - n)):
        payload = Codec(params, n, dtype).compress(x.astype(dtype))
        assert payload.shape == (most,)
        assert params.header_bytes + length_of(payload[params.header_bytes :]) == length


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_way_loses_at_most_half_a_step(dtype):
    workers = [Codec(CompressionParams(ByteGrad()), 5000, dtype) for _ in range(3)]
    server = Codec(CompressionParams(ByteGrad()), 5000, dtype)
    x = [mx.nd.random.normal(shape=(5000,), dtype=dtype) for _ in workers]
    payloads = [codec.compress(g) for codec, g in zip(workers, x)]
    decoded = [codec.decompress(p).asnumpy() for codec, p in zip(workers, payloads)]
    total = sum(decoded)
    out = server.decompress(server.aggregate(mx.nd.stack(*payloads))).asnumpy()
    for before, after in zip([*(g.asnumpy() for g in x), total], [*decoded, out]):
        half_step = (before.max() - before.min()) / 255 / 2
        assert np.abs(before - after).max() <= half_step * (1 + 1e-4)
        assert (after.min(), after.max()) == (before.min(), before.max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_codec_restored_from_its_state_goes_on_bit_for_bit(dtype):
    params = CompressionParams(ByteGrad(), "corrected", 0.9)
    gradients = [mx.nd.random.normal(shape=(333,), dtype=dtype) for _ in range(6)]
    codec, restored = Codec(params, 333, dtype), Codec(params, 333, dtype)
    for gradient in gradients[:3]:
        codec.compress(gradient)
    restored.load_state(codec.state())
    for gradient in gradients[3:]:
        expected = codec.compress(gradient, ratio=0.5).asnumpy()
        np.testing.assert_array_equal(restored.compress(gradient, ratio=0.5).asnumpy(), expected)


def test_messages_of_several_rows_agree_with_a_numpy_replay(tmp_path):
    options = arguments("bytegrad", "corrected", shapes=[(40_000,)], steps=3)
    results = run(tmp_path, "steps", options, workers=2, servers=1)
    check_replay(results, options)
    assert_identical(results)


def test_equal_gradients_are_exact_and_take_no_bytes_on_the_wire():
    parameters, trainer = make([(50_000,)], {"learning_rate": 1.0}, {"compressor": "bytegrad"})
    backward(parameters, [np.full(50_000, 0.1, np.float32)])
    trainer.step(1)
    np.testing.assert_array_equal(parameters[0].grad().asnumpy(), np.float32(0.1))
    stats = trainer.compression_stats()["total"]
    assert stats["pushed_bytes"] == stats["pulled_bytes"] == 12


def test_a_payload_that_lies_about_its_length_is_an_error():
    codec = Codec(CompressionParams(ByteGrad()), 100, "float32")
    good = codec.compress(mx.nd.arange(100)).asnumpy()
    for length in (0, 12, 111, 113, 2**32 - 1):
        bad = good.copy()
        bad[:4] = np.array([length], np.uint32).view(np.uint8)
        with pytest.raises(mx.MXNetError, match="payload 1 is not one of 100 elements"):
            rows = mx.nd.array(np.stack([good, bad]), dtype="uint8")
            codec.aggregate(rows).wait_to_read()
        with pytest.raises(mx.MXNetError, match="payload 0 is not one of 100 elements"):
            codec.decompress(mx.nd.array(bad, dtype="uint8")).wait_to_read()


def test_described_params_are_read_back_as_they_were():
    params = parse({"compressor": "bytegrad", "ef": "corrected"})
    assert params == CompressionParams(ByteGrad(), "corrected", hierarchical=True)
    assert parse(params.describe()) == params


def test_sparse_feedback_is_refused():
    with pytest.raises(ValueError, match="'sparse' is for randomk, not for bytegrad"):
        parse({"compressor": "bytegrad", "ef": "sparse"})

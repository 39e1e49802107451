"""dithering through its operators: levels, lengths, streams, and what is refused."""

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry, stream
from tests.distributed.cluster import run
from tests.distributed.test_two_way import arguments, assert_identical, check_replay
from tests.test_trainer import backward, make

Dithering = registry["dithering"]
KINDS = pytest.mark.parametrize(
    "kind",
    [
        dict(k=2),
        dict(k=7, normalize="l2"),
        dict(k=3, partition="natural"),
        dict(k=20, partition="natural", normalize="l2"),
    ],
)


def codec_of(params, n, dtype="float32", seed=5):
    return Codec(params, n, dtype, stream.seeded(seed).tolist())


def length_of(payload):
    return int(payload.asnumpy()[:4].view(np.uint32)[0])


@KINDS
@pytest.mark.parametrize("ef", [None, "vanilla", "corrected"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 16, 33, 1000])
def test_no_payload_is_longer_than_the_plan_reckons_with(kind, ef, dtype, n):
    params = CompressionParams(Dithering(**kind), ef)
    payload = codec_of(params, n, dtype).compress(mx.nd.random.normal(shape=(n,), dtype=dtype))
    most = params.payload_bytes(n, dtype)
    assert payload.size == most
    length = payload.asnumpy()[params.header_bytes :][:4].view(np.uint32)[0]
    assert params.header_bytes + length <= most


@KINDS
def test_what_is_decoded_is_a_level_beside_the_element(kind):
    compressor = Dithering(**kind)
    x = mx.nd.random.normal(shape=(5000,))
    codec = codec_of(CompressionParams(compressor), 5000)
    out = codec.decompress(codec.compress(x)).asnumpy()
    x = x.asnumpy()
    norm = np.abs(x).max() if compressor.normalize == "max" else np.linalg.norm(x)
    if compressor.partition == "natural":
        levels = np.concatenate([[0], norm * 0.5 ** np.arange(compressor.k)[::-1]])
    else:
        levels = norm * np.arange(compressor.k + 1) / compressor.k
    above = np.clip(np.searchsorted(levels, np.abs(x) * (1 - 1e-6)), 1, compressor.k)
    beside = [np.isclose(np.abs(out), levels[i], rtol=1e-5) for i in (above - 1, above)]
    assert np.logical_or(*beside).all()
    assert (out * x >= 0).all()


def test_sparse_codes_are_short():
    params = CompressionParams(Dithering(2, normalize="l2"))
    codec = codec_of(params, 100_000)
    payload = codec.compress(mx.nd.random.normal(shape=(100_000,)))
    assert length_of(payload) < 0.1 * params.payload_bytes(100_000, "float32")


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_codec_restored_from_its_state_goes_on_bit_for_bit(kind, dtype):
    params = CompressionParams(Dithering(**kind), "corrected", 0.9)
    gradients = [mx.nd.random.normal(shape=(333,), dtype=dtype) for _ in range(6)]
    codec, restored = codec_of(params, 333, dtype), codec_of(params, 333, dtype, seed=99)
    for gradient in gradients[:3]:
        codec.compress(gradient)
    restored.load_state(codec.state())
    for gradient in gradients[3:]:
        expected = codec.decompress(codec.compress(gradient, ratio=0.5)).asnumpy()
        got = restored.decompress(restored.compress(gradient, ratio=0.5)).asnumpy()
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["dithering", "natural dithering l2"])
def test_messages_of_several_rows_agree_with_a_numpy_replay(tmp_path, kind):
    options = arguments(kind, "corrected", shapes=[(40_000,)], steps=3)
    results = run(tmp_path, "steps", options, workers=2, servers=1)
    check_replay(results, options)
    assert_identical(results)


def test_workers_agree_without_a_seed(tmp_path):
    options = {
        "compression_params": {"compressor": "dithering", "k": 1},
        "sizes": [2000],
        "value": 0.5,
    }
    first, second = run(tmp_path, "equal_gradients", options, workers=2, servers=1)
    np.testing.assert_array_equal(first["g0"], second["g0"])
    assert set(np.unique(first["g0"])) == {0, 1}
    assert abs(first["g0"].mean() - 0.5) < 0.06  # five standard errors


@pytest.mark.parametrize("seed", [None, 3])
def test_every_node_has_a_stream_of_its_own(seed):
    def start(node, index, begin):
        return stream.start(Dithering(2, seed=seed), 100, node, index, begin, b"entropy")

    starts = {start(node, index, 0) for node in range(3) for index in range(3)}
    assert len(starts) == 9
    assert (start(0, 0, 0) == start(0, 0, 100)) == (seed is not None)


def test_a_payload_that_is_no_code_is_an_error():
    codec = codec_of(CompressionParams(Dithering(3)), 100)
    good = codec.compress(mx.nd.random.normal(shape=(100,))).asnumpy()
    for at, value in ((0, 1), (0, 10**6), (4, 7)):
        bad = good.copy()
        bad[at : at + 4] = np.array([value], np.uint32).view(np.uint8)
        with pytest.raises(mx.MXNetError, match="payload 1 is not a code of 100 elements"):
            rows = mx.nd.array(np.stack([good, bad]), dtype="uint8")
            codec.aggregate(rows).wait_to_read()
        with pytest.raises(mx.MXNetError, match="payload 0 is not a code of 100 elements"):
            codec.decompress(mx.nd.array(bad, dtype="uint8")).wait_to_read()


def test_stats_count_the_bytes_in_use():
    params = {"compressor": "dithering", "k": 2, "normalize": "l2"}
    parameters, trainer = make([(50_000,)], {"learning_rate": 1.0}, params)
    for step in range(3):
        random = np.random.default_rng(step)
        backward(parameters, [random.standard_normal(50_000).astype(np.float32)])
        trainer.step(1)
    stats = trainer.compression_stats()["total"]
    assert 0 < stats["pushed_bytes"] < 0.1 * 50_000 * 3 / 8
    assert 0 < stats["pulled_bytes"] < 0.1 * 50_000 * 3 / 8
    assert stats["bits_per_element"] == pytest.approx(8 * stats["pushed_bytes"] / 50_000)
    assert min(stats[f"{part}_seconds"] for part in ("compress", "wait", "decompress")) > 0


@KINDS
def test_described_params_are_read_back_as_they_were(kind):
    params = parse({"compressor": "dithering", "ef": "vanilla", "seed": 3, **kind})
    assert params == CompressionParams(Dithering(**kind, seed=3), "vanilla")
    assert parse(params.describe()) == params


def test_levels_may_come_as_any_whole_number():
    for k in (4, 4.0, np.int64(4), np.float32(4)):
        assert parse({"compressor": "dithering", "k": k}).compressor == Dithering(4)


@pytest.mark.parametrize(
    "more, error, message",
    [
        ({}, KeyError, "compression_params['k'] is missing; dithering needs"),
        ({"k": 0.5}, ValueError, "['k'] must be a whole number from 1 to 8388607 for linear"),
        ({"k": 2**23}, ValueError, "['k'] must be a whole number from 1 to 8388607 for linear"),
        (
            {"k": 32, "partition": "natural"},
            ValueError,
            "['k'] must be a whole number from 1 to 31 for natural dithering, got 32",
        ),
        ({"k": 2, "partition": "cubic"}, ValueError, "'linear' or 'natural', got 'cubic'"),
        ({"k": 2, "normalize": "l1"}, ValueError, "'max' or 'l2', got 'l1'"),
        ({"k": 2, "seed": -1}, ValueError, "['seed'] must be a whole number > 0, got -1"),
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(more, error, message):
    with pytest.raises(error) as raised:
        parse({"compressor": "dithering", **more})
    assert message in raised.value.args[0]

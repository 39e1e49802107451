"""compression_params, and a codec's state."""

import json

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry
from gluon_gc.compression.option import listed

OPTIMIZER = {"learning_rate": 0.1, "momentum": 0.9}
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "scaling": True}
COMPRESSORS = listed([f"'{name}'" for name in registry], "or")


def test_the_published_dictionary_is_understood():
    params = parse(ONEBIT, OPTIMIZER)
    assert params == CompressionParams(registry["onebit"](scaling=True), "vanilla", 0.9)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"compressor": ""},
        {"compressor": None, "ef": "", "momentum": False, "fp16": None},
        {"compressor": False, "k": 1, "normalize": "max", "partition": "linear", "scaling": False},
    ],
)
def test_falsy_values_mean_off(params):
    assert parse(params) == CompressionParams()


def test_what_byteps_scripts_pass_for_other_compressors_is_no_contradiction():
    params = parse(
        {**ONEBIT, "k": 1, "normalize": "max", "partition": "linear", "fp16": False}, OPTIMIZER
    )
    assert params == parse(ONEBIT, OPTIMIZER)


def test_numpy_scalars_are_as_good_as_pythons():
    params = parse({"compressor": "onebit", "scaling": np.bool_(True), "fp16": np.bool_(True)})
    assert params == CompressionParams(registry["onebit"](scaling=True), fp16=True)


@pytest.mark.parametrize(
    "params, error, message",
    [
        ([], TypeError, "compression_params must be a dict, got list"),
        ({"compresor": "onebit"}, ValueError, "no key 'compresor'; did you mean 'compressor'?"),
        ({3: 4}, ValueError, "no key 3"),
        (
            {"compressor": "onebits"},
            ValueError,
            f"['compressor'] must be {COMPRESSORS}, got 'onebits'",
        ),
        (
            {"compressor": 1},
            TypeError,
            f"['compressor'] must be {COMPRESSORS}, got 1 (int)",
        ),
        (
            {"compressor": "onebit", "scaling": "yes"},
            TypeError,
            "['scaling'] must be True or False, got 'yes' (str)",
        ),
        (
            {"compressor": "onebit", "scaling": 1},
            TypeError,
            "['scaling'] must be True or False, got 1 (int)",
        ),
        (
            {"compressor": "onebit", "ef": "vanila"},
            ValueError,
            "['ef'] must be 'vanilla', 'corrected' or 'sparse', got 'vanila'",
        ),
        (
            {"compressor": "onebit", "ef": True},
            TypeError,
            "['ef'] must be 'vanilla', 'corrected' or 'sparse', got True",
        ),
        (
            {"compressor": "onebit", "momentum": "polyak"},
            ValueError,
            "['momentum'] must be 'nesterov', got 'polyak'",
        ),
        (
            {"compressor": "onebit", "momentum": 0.9},
            TypeError,
            "['momentum'] must be 'nesterov', got 0.9",
        ),
        (
            {"compressor": "onebit", "fp16": "half"},
            TypeError,
            "['fp16'] must be True or False, got 'half'",
        ),
        (
            {"compressor": "onebit", "k": 10},
            ValueError,
            "['k'] is for topk, randomk, dithering and dgc, not for onebit",
        ),
        ({"compressor": "onebit", "k": -1}, ValueError, "['k'] must be a share between 0 and 1 or"),
        (
            {"compressor": "onebit", "k": True},
            TypeError,
            "or a whole number >= 1, got True (bool)",
        ),
        (
            {"compressor": "onebit", "seed": 3},
            ValueError,
            "['seed'] is for randomk, dithering and dgc, not for onebit",
        ),
        (
            {"compressor": "onebit", "normalize": "l2"},
            ValueError,
            "['normalize'] is for dithering, not for onebit",
        ),
        ({"scaling": True}, ValueError, "['scaling'] is for onebit, not for no compressor"),
        ({"ef": "vanilla"}, ValueError, "['ef'] needs a 'compressor'"),
        ({"momentum": "nesterov"}, ValueError, "['momentum'] needs a 'compressor'"),
        ({"exchange": "gather"}, ValueError, "['exchange'] needs a 'compressor'"),
        ({"hierarchical": True}, ValueError, "['hierarchical'] needs a 'compressor'"),
        (
            {"compressor": "onebit", "exchange": "ring"},
            ValueError,
            "['exchange'] must be 'two_way' or 'gather', got 'ring'",
        ),
        ({"compressor": "dgc"}, KeyError, "['k'] is missing; dgc needs a share between 0 and 1"),
        (
            {"compressor": "dgc", "k": 0.001, "compress_ratio": 1000},
            ValueError,
            "have 'k' and 'compress_ratio', which are the same",
        ),
        (
            {"compressor": "dgc", "compress_ratio": 1},
            ValueError,
            "['compress_ratio'] must be a share between 0 and 1 or its reciprocal, got 1",
        ),
        ({"compressor": "dgc", "k": 9, "ef": "vanilla"}, ValueError, "['ef'] is not for dgc"),
        (
            {"compressor": "dgc", "k": 9, "exchange": "two_way"},
            ValueError,
            "['exchange'] must be 'gather' for dgc",
        ),
        (
            {"compressor": "dgc", "k": 9, "warmup_epochs": 3, "warmup_coeff": [0.1, 0.01]},
            ValueError,
            "['warmup_coeff'] must have a share for each of the 3 warmup_epochs",
        ),
        (
            {"compressor": "dgc", "k": 9, "warmup_coeff": [0.1, 1.5]},
            ValueError,
            "['warmup_coeff'] must be a number between 0 and 1 or a list of them",
        ),
        (
            {"compressor": "dgc", "k": 9, "sample_ratio": 0},
            ValueError,
            "['sample_ratio'] must be 0 < sample_ratio <= 1, got 0",
        ),
        (
            {"compressor": "topk", "k": 9, "momentum_masking": True},
            ValueError,
            "['momentum_masking'] is for dgc, not for topk",
        ),
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(params, error, message):
    with pytest.raises(error) as raised:
        parse(params, OPTIMIZER)
    assert message in str(raised.value)


@pytest.mark.parametrize("optimizer_params", [None, {}, {"momentum": 0}, {"learning_rate": 1}])
def test_momentum_needs_the_optimizers_momentum(optimizer_params):
    with pytest.raises(ValueError, match="needs 'momentum' in optimizer_params"):
        parse(ONEBIT, optimizer_params)


@pytest.mark.parametrize(
    "params",
    [
        {"compressor": "onebit", "ef": "corrected", "scaling": True, "fp16": True},
        {"compressor": "bytegrad", "hierarchical": False, "exchange": "gather"},
        {"compressor": "dgc", "k": 0.01, "warmup_epochs": 1, "warmup_coeff": [0.1]},
    ],
)
def test_described_params_are_read_back_as_they_were(params):
    described = json.loads(json.dumps(parse(params).describe()))
    assert parse(described) == parse(params)


def test_bytegrad_is_hierarchical_unless_told_otherwise():
    assert parse({"compressor": "bytegrad"}).hierarchical
    assert not parse({"compressor": "bytegrad", "hierarchical": False}).hierarchical
    assert not parse({"compressor": "topk", "k": 1}).hierarchical


def test_a_compress_ratio_is_a_share_or_its_reciprocal():
    share = parse({"compressor": "dgc", "compress_ratio": 0.001})
    assert parse({"compressor": "dgc", "compress_ratio": 1000}) == share
    assert parse({"compressor": "dgc", "k": 0.001}) == share


def test_dgc_takes_the_optimizers_momentum_in_the_form_that_is_asked_for():
    params = parse({"compressor": "dgc", "k": 0.1}, OPTIMIZER)
    assert (params.mu, params.nesterov) == (0.9, False)
    params = parse({"compressor": "dgc", "k": 0.1, "momentum": "nesterov"}, OPTIMIZER)
    assert (params.mu, params.nesterov) == (0.9, True)
    assert parse({"compressor": "dgc", "k": 0.1}).mu is None


def test_a_warm_up_goes_down_to_k():
    dgc = parse({"compressor": "dgc", "k": 0.001, "warmup_epochs": 4}).compressor
    shares = [dgc.ratio(10**6, epoch) for epoch in range(6)]
    np.testing.assert_allclose(shares[:4], [0.001 ** (e / 5) for e in (1, 2, 3, 4)])
    assert shares[4:] == [0.001, 0.001] and dgc.ratio(10**6, None) == 0.001
    listed = parse(
        {"compressor": "dgc", "k": 0.001, "warmup_epochs": 2, "warmup_coeff": [0.25, 0.06]}
    ).compressor
    assert [listed.ratio(10**6, epoch) for epoch in range(3)] == [0.25, 0.06, 0.001]


@pytest.mark.parametrize("ef", [None, "vanilla", "corrected"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
def test_a_payload_has_the_length_that_the_plan_reckons_with(ef, dtype, n):
    params = CompressionParams(registry["onebit"](), ef)
    payload = Codec(params, n, dtype).compress(mx.nd.ones(n, dtype=dtype))
    assert payload.shape == (params.payload_bytes(n, dtype),)


def test_a_codec_restored_from_its_state_goes_on_bit_for_bit():
    params = CompressionParams(registry["onebit"](scaling=True), "vanilla", 0.9)
    gradients = [mx.nd.random.normal(shape=(333,)) for _ in range(6)]
    codec, restored = Codec(params, 333, "float32"), Codec(params, 333, "float32")
    for gradient in gradients[:3]:
        codec.compress(gradient)
    restored.load_state(codec.state())
    for gradient in gradients[3:]:
        expected = codec.compress(gradient).asnumpy()
        np.testing.assert_array_equal(restored.compress(gradient).asnumpy(), expected)


def test_a_payload_of_the_wrong_length_is_an_error():
    codec = Codec(CompressionParams(registry["onebit"]()), 100, "float32")
    with pytest.raises(mx.MXNetError, match="not of the length that 100 elements need"):
        codec.decompress(mx.nd.zeros(5, dtype="uint8")).wait_to_read()

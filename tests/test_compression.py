"""compression_params, and a codec's state."""

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry

OPTIMIZER = {"learning_rate": 0.1, "momentum": 0.9}
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "scaling": True}


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
            "['compressor'] must be 'bytegrad', 'dithering', 'onebit', 'randomk' or 'topk', "
            "got 'onebits'",
        ),
        (
            {"compressor": 1},
            TypeError,
            "['compressor'] must be 'bytegrad', 'dithering', 'onebit', 'randomk' or 'topk', "
            "got 1 (int)",
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
            "['k'] is for topk and randomk and dithering and dgc, not for onebit",
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
            "['seed'] is for randomk and dithering, not for onebit",
        ),
        (
            {"compressor": "onebit", "normalize": "l2"},
            ValueError,
            "['normalize'] is for dithering, not for onebit",
        ),
        ({"scaling": True}, ValueError, "['scaling'] is for onebit, not for no compressor"),
        ({"ef": "vanilla"}, ValueError, "['ef'] needs a 'compressor'"),
        ({"momentum": "nesterov"}, ValueError, "['momentum'] needs a 'compressor'"),
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


def test_described_params_are_read_back_as_they_were():
    params = parse({"compressor": "onebit", "ef": "corrected", "scaling": True, "fp16": True})
    assert parse(params.describe()) == params


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

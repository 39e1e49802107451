"""compression_params, and a codec's state."""

import json

import mxnet as mx
import numpy as np
import pytest

from gluon_gc.compression import Codec, CompressionParams, parse, registry
from gluon_gc.compression.option import listed
from gluon_gc.compression.params import ignored, warn_of_ignored

MU = 0.9
ONEBIT = {"compressor": "onebit", "ef": "vanilla", "momentum": "nesterov", "scaling": True}
COMPRESSORS = listed([f"'{name}'" for name in registry], "or")


def test_the_published_dictionary_is_understood():
    params = parse(ONEBIT, MU)
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
    scripts = {"k": 1.0, "normalize": "max", "partition": "linear", "fp16": False}
    assert parse({**ONEBIT, **scripts}, MU) == parse(ONEBIT, MU)
    assert ignored({**ONEBIT, **scripts}) == {}


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
        ({"compressor": "topk", "k": -1}, ValueError, "['k'] must be a share between 0 and 1 or"),
        (
            {"compressor": "topk", "k": True},
            TypeError,
            "or a whole number >= 1, got True (bool)",
        ),
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
        ({"compressor": "dgc", "k": 9, "ef": "sparse"}, ValueError, "'sparse' is for randomk, not"),
        ({"compressor": "onebit", "ef": "sparse"}, ValueError, "'sparse' is for randomk, not"),
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
    ],
)
def test_wrong_params_are_refused_by_name_rule_and_value(params, error, message):
    with pytest.raises(error) as raised:
        parse(params, MU)
    assert message in str(raised.value)


@pytest.mark.parametrize("mu", [None, 0, 0.0])
def test_momentum_needs_the_optimizers_momentum(mu):
    with pytest.raises(ValueError, match="needs 'momentum' in optimizer_params"):
        parse(ONEBIT, mu)


@pytest.mark.parametrize(
    "params, keys",
    [
        ({"compressor": "onebit", "k": 10, "seed": 2020}, ["k", "seed"]),
        ({"compressor": "onebit", "normalize": "l3"}, ["normalize"]),
        ({"compressor": "randomk", "k": 9, "normalize": "l2"}, ["normalize"]),
        ({"compressor": "topk", "k": 9, "scaling": True}, ["scaling"]),
        ({"compressor": "topk", "k": 9, "momentum_masking": True}, ["momentum_masking"]),
        ({"compressor": "topk", "k": 9, "momentum_masking": False}, []),
        ({"compressor": "dgc", "k": 9, "ef": "vanilla"}, ["ef"]),
        ({"ef": "sparse", "momentum": "nesterov"}, ["ef", "momentum"]),
        ({"exchange": "gather", "hierarchical": True, "fp16": True}, ["exchange", "hierarchical"]),
    ],
)
def test_what_belongs_to_another_compressor_is_ignored(params, keys):
    assert list(ignored(params)) == keys
    assert parse(params) == parse({key: params[key] for key in params if key not in keys})


def test_one_warning_names_all_that_is_ignored():
    with pytest.warns(UserWarning) as warned:
        (lambda: warn_of_ignored({"compressor": "onebit", "seed": 3, "k": 2}, None, {"k": 2}))()
    (warning,) = warned
    assert str(warning.message) == (
        "compression_params has keys that are ignored: 'seed' is not for onebit, got 3; "
        "'k' is not for onebit, got 2; 'k' needs a compressor, got 2"
    )


@pytest.mark.parametrize("name", ["topk", "randomk", "dgc"])
@pytest.mark.parametrize("one", [1.0, np.float32(1), np.float64(1)])
def test_a_share_of_one_is_refused_where_one_is_an_element(name, one):
    with pytest.raises(ValueError, match=r"\['k'\] must be a share below 1 .*, got 1\.0: 1 is one"):
        parse({"compressor": name, "k": one})


@pytest.mark.parametrize("name", ["topk", "randomk", "dgc"])
@pytest.mark.parametrize("k", [1, np.int64(1), 2.0, 0.999])
def test_other_shares_and_numbers_are_what_they_say(name, k):
    assert parse({"compressor": name, "k": k}).compressor.k == k


def test_a_whole_float_is_a_number_of_levels():
    assert parse({"compressor": "dithering", "k": 1.0}).compressor.k == 1


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
    params = parse({"compressor": "dgc", "k": 0.1}, MU)
    assert (params.mu, params.nesterov) == (0.9, False)
    params = parse({"compressor": "dgc", "k": 0.1, "momentum": "nesterov"}, MU)
    assert (params.mu, params.nesterov) == (0.9, True)
    params = parse({"compressor": "dgc", "k": 0.1}, MU, nesterov=True)
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

"""Options, arrays, payloads and states that a codec rejects."""

import copy
import pickle

import numpy as np
import pytest

from gluon_gc import kernels
from tests.neutral.kernels.bindings import aggregate

from .cases import each_compressor, options_of
from .replay import element_count, low_bits_of, payload_bytes

START = kernels.position((1, 2), 3)


def test_a_compressor_that_is_not_there_is_refused_by_name():
    with pytest.raises(ValueError, match="there is no compressor 'twobit'"):
        kernels.Codec("twobit", {}, 10)
    with pytest.raises(ValueError, match="there is no compressor ''"):
        kernels.Codec("", {}, 10)


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match="dtype must be float32 or float64, got"):
        kernels.Codec("onebit", {}, 10, dtype)


@pytest.mark.parametrize("name", ["topk", "randomk", "dithering", "dgc"])
@pytest.mark.parametrize(
    "k, message",
    [
        (None, "k is missing"),
        (0, "k must be"),
        (-1, "k must be"),
        (float("nan"), "k must be"),
        (-0.5, "k must be"),
        ("many", "k must be a number, got 'many'"),
        ("5junk", "k must be a number, got '5junk'"),
        ("", "k must be a number, got ''"),
        ("\n7", "k must be a number, got ''"),
    ],
)
def test_a_k_that_is_missing_or_no_number_above_zero_is_refused(name, k, message):
    options = {key: value for key, value in options_of(name)[0].items() if key != "k"}
    if k is not None:
        options = {"k": k, **options}
    with pytest.raises(ValueError, match=message):
        kernels.Codec(name, options, 10)


@pytest.mark.parametrize("k", [2.5, 1e30, float("inf")])
def test_levels_are_a_whole_number(k):
    options = {**options_of("dithering")[0], "k": k}
    with pytest.raises(ValueError, match="k must be a whole number >= 0, got"):
        kernels.Codec("dithering", options, 10)


@pytest.mark.parametrize("k", [1, 2.9, 10, 11, 1e300, 0.1, 0.29999, 0.3, 1e-9, 1 - 2**-53, 0.07])
@pytest.mark.parametrize("n", [1, 7, 10, 100, 1000, 2**24 + 1])
def test_k_is_a_share_or_a_number_of_elements(k, n):
    count = element_count(k, n)
    expected = payload_bytes(n, count, low_bits_of(n, count), 4)
    assert kernels.Codec("topk", {"k": k}, n).payload_bytes == expected
    assert kernels.Codec("randomk", {"k": k}, n, np.float64).draws == element_count(k, n)


def test_options_that_a_compressor_does_not_have_are_nothing_to_it():
    a, b = kernels.Codec("topk", {"k": 3}, 10), kernels.Codec("topk", {"seed": 1, "k": 3}, 10)
    assert a.payload_bytes == b.payload_bytes
    assert kernels.Codec("topk", {"ck": 5, "k": 3, "kk": 4}, 10).payload_bytes == 14


@pytest.mark.parametrize(
    "name, options",
    [
        ("onebit", {"scaling": True}),
        ("onebit", {"scaling": False}),
        ("topk", {"k": 0.5}),
        ("topk", {"k": 3}),
    ],
)
def test_numpy_scalars_are_the_same_options_as_numbers_of_python(name, options):
    of_numpy = {key: np.array(value)[()] for key, value in options.items()}
    assert kernels.as_text(of_numpy) == kernels.as_text(options)
    values = np.arange(10, dtype=np.float32)
    payloads = [kernels.Codec(name, given, 10).compress(values)[0] for given in (of_numpy, options)]
    np.testing.assert_array_equal(*payloads)


@pytest.mark.parametrize(
    "name, before, after, size",
    [
        ("topk", {"k": 1}, {"k": 9}, "payload_bytes"),
        ("onebit", {}, {"ef": "vanilla"}, "memory"),
        ("onebit", {}, {"mu": 0.9}, "momentum"),
    ],
)
def test_later_options_that_need_other_sizes_are_refused(name, before, after, size):
    codec, values = kernels.Codec(name, before, 100), np.arange(100, dtype=np.float32)
    expected, _ = codec.compress(values)
    with pytest.raises(ValueError, match=f"options must not change {size} from .*, got"):
        codec.set_options(after)
    np.testing.assert_array_equal(codec.compress(values)[0], expected)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_codec_cannot_be_copied(copied):
    with pytest.raises(TypeError, match="a Codec cannot be copied or pickled"):
        copied(kernels.Codec("onebit", {}, 10))


def test_values_can_be_added_only_to_a_given_array():
    codec = kernels.Codec("onebit", {}, 10)
    payload, _ = codec.compress(np.ones(10, np.float32))
    with pytest.raises(ValueError, match="add needs out, the values to add to; got None"):
        codec.decompress(payload, add=True)


def test_a_momentum_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="mu must be a number, got 'None'"):
        kernels.Codec("onebit", {"mu": None}, 10)


@pytest.mark.parametrize("decay", [0, -0.5, 1.5, float("nan")])
def test_a_decay_that_is_not_above_0_and_at_most_1_is_refused(decay):
    with pytest.raises(ValueError, match="ef_decay must be above 0 and at most 1, got"):
        kernels.Codec("onebit", {"ef": "vanilla", "ef_decay": decay}, 10)


def test_text_is_read_alike_in_every_locale():
    import locale

    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_NUMERIC, name)
            except locale.Error:
                continue
            expected = kernels.Codec("topk", {"k": 5}, 10).payload_bytes
            assert kernels.Codec("topk", {"k": 0.5}, 10).payload_bytes == expected
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


@each_compressor
def test_arrays_of_another_type_size_or_layout_are_refused(name):
    codec = kernels.Codec(name, {**options_of(name)[0], "mu": 0.9, "ef": "vanilla"}, 8)
    state, values = codec.state(), np.zeros(8, np.float32)
    for wrong, error in (
        (np.zeros(8, np.float64), TypeError),
        (np.zeros(9, np.float32), ValueError),
        (np.zeros(16, np.float32)[::2], ValueError),
    ):
        with pytest.raises(error, match="values must"):
            codec.compress(wrong, state)
        with pytest.raises(error, match="momentum must"):
            codec.compress(values, state._replace(momentum=wrong))
        with pytest.raises(error, match="memory must"):
            codec.compress(values, state._replace(memory=(wrong, *state.memory[1:])))
    with pytest.raises(ValueError, match="earlier.momentum must be an array"):
        codec.compress(values, state, earlier=state._replace(momentum=None))
    with pytest.raises(ValueError, match="state.momentum must be an array"):
        codec.compress(values, state._replace(momentum=None))
    with pytest.raises(ValueError, match=f"memory must be {len(codec.memory)} arrays, got 0"):
        codec.compress(values, state._replace(memory=()))


@each_compressor
def test_rows_that_have_no_room_for_a_payload_are_refused(name):
    codec = kernels.Codec(name, options_of(name)[0], 100)
    payload, _ = codec.compress(np.ones(100, np.float32), codec.state(), START)
    with pytest.raises(ValueError, match="payloads must have at least"):
        codec.decompress(payload[:-1], START)
    with pytest.raises(ValueError, match="payloads must have at least"):
        aggregate(codec, np.stack([payload, payload])[:, :-1].copy(), codec.state(), START)


@each_compressor
def test_of_no_payloads_there_is_no_aggregate(name):
    codec = kernels.Codec(name, options_of(name)[0], 100)
    with pytest.raises(ValueError, match="aggregate"):
        aggregate(codec, np.zeros((0, codec.payload_bytes), np.uint8), codec.state())


@each_compressor
def test_a_codec_without_feedback_has_no_residual(name):
    codec = kernels.Codec(name, options_of(name)[0], 4)
    if not codec.memory:
        with pytest.raises(ValueError, match="without error feedback has no residual"):
            codec.residual(codec.state())


@each_compressor
def test_a_payload_that_says_it_is_longer_than_there_is_room_is_refused(name):
    codec = kernels.Codec(name, options_of(name)[0], 100)
    payload, status = codec.compress(np.ones(100, np.float32), codec.state(), START)
    assert codec.used(payload) == codec.used(payload[: status.bytes]) == status.bytes
    if codec.length_at is not None:
        with pytest.raises(ValueError, match=f"must have {status.bytes} bytes, as its header"):
            codec.used(payload[: status.bytes - 1])

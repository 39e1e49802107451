"""blocktopk: its replay in NumPy, which sorts each block, and its own tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import valid

from . import replay
from .distributions import DISTRIBUTIONS, N, assert_steps_equal_replay
from .replay import bytes_of, element_count, finite_halves, packed
from .test_topk import chosen


def example(k=1 / 64, block=4096, value_bits=32):
    return {"k": k, "block": block, "value_bits": value_bits}


OPTIONS = [
    example(),
    example(value_bits=2),
    example(k=7, block=256, value_bits=8),
    example(k=0.3, block=512, value_bits=16),
    example(k=0.3, block=512, value_bits=4),
    example(k=1, block=1024),
    example(k=0.9999, block=2048, value_bits=2),
    example(k=10**6, block=256),
]
PARAMS = {"blocktopk": {"k": 0.1, "block": 256, "value_bits": 2}}

each_value_bits = pytest.mark.parametrize("value_bits", [2, 4, 8, 16, 32])


def sum_of(values):
    """Return a sum in float64 in the order of sum_tree.h: 32 chains, then a butterfly."""
    padded = np.pad(values.astype(np.float64), (0, -values.size % 32)).reshape(-1, 32)
    chains = np.zeros(32)
    for row in padded:
        chains = chains + row
    while chains.size > 1:
        chains = chains[: chains.size // 2] + chains[chains.size // 2 :]
    return chains[0]


def mean(magnitude, group):
    """Return the mean of the magnitudes in a group; 0 if there are none."""
    T, count = magnitude.dtype.type, np.count_nonzero(group)
    return T(sum_of(np.where(group, magnitude, T(0))) / count) if count else T(0)


def rounded(x, bits):
    """Return the bytes of a block's scales, those of its values x, and the decoded values."""
    T, magnitude, sign = x.dtype.type, np.abs(x), np.signbit(x)
    if bits == 32:
        return [], x, x
    if bits == 16:
        half = finite_halves(x)
        return [], half, half.astype(T)
    if bits == 2:
        high = magnitude >= mean(magnitude, np.ones(x.size, bool))
        scales = [mean(magnitude, ~high), mean(magnitude, high)]
        number, decoded = high, np.where(high, scales[1], scales[0])
    else:
        scales, levels = [magnitude.max()], T(2 ** (bits - 1) - 1)
        share = magnitude / scales[0] if scales[0] else np.zeros_like(x)
        number = np.rint(share * levels)
        decoded = number / levels * scales[0]
    numbers = number.astype(np.uint32) | sign.astype(np.uint32) << (bits - 1)
    return [np.array(scales, T)], packed(numbers, bits), np.where(sign, -decoded, decoded)


class Replay(replay.Replay):
    """blocktopk in NumPy."""

    def encode(self, p):
        block, bits = self.options["block"], self.options["value_bits"]
        decoded, records = np.zeros_like(p), [np.zeros(0, np.uint8)]
        for begin in range(0, p.size, block):
            part = p[begin : begin + block]
            indices = chosen(part, element_count(self.options["k"], part.size))
            scales, values, kept = rounded(part[indices], bits)
            records += [*scales, packed(indices, block.bit_length() - 1), values]
            decoded[begin + indices] += kept
        return bytes_of(*records), decoded


@settings(max_examples=8)
@given(
    st.integers(0, 3),
    st.sampled_from([1, 64, 1000, 4095]),
    st.sampled_from([2, 8, 32]),
    arrays.dtypes,
    st.booleans(),
    arrays.isas,
    arrays.threads,
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_distribution_defeats_the_search(name, seed, k, bits, dtype, feedback, isa, threads):
    options = {**example(k, 4096, bits), **({"ef": "vanilla", "mu": 0.9} if feedback else {})}
    assert_steps_equal_replay("blocktopk", Replay, options, name, seed, dtype, isa, threads)


@arrays.each_isa
def test_the_blocks_before_have_no_influence_on_a_block(isa):
    random = np.random.default_rng(0)
    blocks = [random.standard_normal(256) * 10.0**power for power in (0, 30, -30, 2)]
    blocks.insert(2, np.zeros(256))
    blocks.insert(4, np.full(256, 1e-3))
    options = example(4, 256, 8)
    whole = kernels.Codec("blocktopk", options, 256 * len(blocks), isa=isa)
    one = kernels.Codec("blocktopk", options, 256, isa=isa)
    values = np.concatenate(blocks).astype(np.float32)
    alone = [one.compress(part)[0] for part in values.reshape(-1, 256)]
    assert np.array_equal(whole.compress(values)[0], np.concatenate(alone))


@each_value_bits
@given(st.integers(1, 5000), st.floats(1e-4, 0.999), arrays.dtypes, arrays.seeds)
def test_what_is_lost_is_at_most_what_is_left_out_and_the_rest_of_what_is_sent(
    value_bits, n, k, dtype, seed
):
    x = arrays.awkward(n, dtype, seed)
    codec = kernels.Codec("blocktopk", example(k, 256, value_bits), n, dtype)
    out, _ = codec.decompress(codec.compress(x)[0])
    exact, largest = x.astype(np.longdouble), np.abs(x).max().astype(np.longdouble)
    for begin in range(0, n, 256):
        part, sent = exact[begin : begin + 256], out[begin : begin + 256]
        indices = chosen(x[begin : begin + 256], element_count(k, part.size))
        others = np.setdiff1d(np.arange(part.size), indices)
        assert not sent[others].any()
        error = np.sum(((part - sent)[indices] / largest) ** 2) if largest else 0
        energy = np.sum((part[indices] / largest) ** 2) if largest else 0
        assert error <= energy * (1 + 1e-6)
        if value_bits in (4, 8):
            step = np.abs(part).max() / (2 ** (value_bits - 1) - 1)
            tiny = np.finfo(dtype).smallest_subnormal
            assert (np.abs(part - sent)[indices] <= step * (0.5 + 1e-4) + tiny).all()


@pytest.mark.parametrize(
    "value_bits, record", [(32, 96 + 256), (16, 96 + 128), (8, 4 + 96 + 64), (4, 132), (2, 120)]
)
def test_a_payload_has_the_length_that_follows_from_the_options(value_bits, record):
    for n, expected in ((4096, record), (10 * 4096, 10 * record)):
        codec = kernels.Codec("blocktopk", example(value_bits=value_bits), n)
        assert codec.payload_bytes == expected
    last = kernels.Codec("blocktopk", example(value_bits=value_bits), 640).payload_bytes
    longer = kernels.Codec("blocktopk", example(value_bits=value_bits), 4096 + 640)
    assert longer.payload_bytes == record + last  # 10 of 640 elements


@arrays.each_isa
@arrays.each_dtype
def test_a_value_beyond_float16_is_sent_as_the_largest_one_and_the_rest_waits(isa, dtype):
    codec = kernels.Codec("blocktopk", {**example(1, 256, 16), "ef": "vanilla"}, 300, dtype, isa)
    state, x = codec.state(), np.zeros(300, dtype)
    x[5], x[299] = 1e5, -65519
    payload, status = codec.compress(x, state)
    out = codec.decompress(payload)[0]
    assert status.finite and out[5] == 65504 and out[299] == -65504
    assert codec.residual(state)[5] == dtype(1e5) - 65504 and codec.residual(state)[299] == -15


@arrays.each_isa
@arrays.each_dtype
@each_value_bits
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 98), (N, 77_777)])
def test_a_value_that_is_not_finite_is_noticed(isa, dtype, value_bits, bad, size, at):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    codec = kernels.Codec("blocktopk", example(1, 4096, value_bits), size, dtype, isa)
    payload, status = codec.compress(x)
    out, read = codec.decompress(payload)
    assert not status.finite and not read.finite and not np.isfinite(out).all()


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_more_nans_than_are_sent_give_a_valid_payload(isa, dtype, share):
    random = np.random.default_rng(0)
    x = random.standard_normal(5000).astype(dtype)
    x[random.random(5000) < share] = np.nan
    x[random.random(5000) < share / 2] = -np.inf
    codec = kernels.Codec("blocktopk", example(64, 4096, 4), 5000, dtype, isa)
    payload, status = codec.compress(x)
    assert valid(codec, payload) and not status.finite


@given(st.lists(st.integers(0, 511), min_size=4, max_size=4), st.integers(257, 600), arrays.isas)
def test_a_payload_is_valid_just_if_indices_ascend_inside_each_block(indices, n, isa):
    codec = kernels.Codec("blocktopk", example(4, 512, 2), n, isa=isa)
    size = min(n, 512)
    payload, _ = codec.compress(np.ones(n, np.float32))
    for candidate in (np.array(indices), np.sort(indices)):
        payload[8 : 8 + 5] = packed(candidate, 9)
        expected = bool((np.diff(candidate) > 0).all() and candidate[-1] < size)
        assert valid(codec, payload) == expected


@pytest.mark.parametrize(
    "options, message",
    [
        (example(block=128), "block must be a power of two from 256 to 4096, got 128"),
        (example(block=8192), "block must be a power of two from 256 to 4096, got 8192"),
        (example(block=768), "block must be a power of two from 256 to 4096, got 768"),
        (example(value_bits=3), "value_bits must be 32, 16, 8, 4 or 2, got 3"),
        (example(value_bits=64), "value_bits must be 32, 16, 8, 4 or 2, got 64"),
        (example(k=0), "k must be > 0, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        kernels.Codec("blocktopk", options, 10)

"""topk: its replay in NumPy, which sorts, and its own tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import valid

from . import replay
from .distributions import DISTRIBUTIONS, N, assert_steps_equal_replay, large_where_sampled
from .replay import element_count, finite_halves, low_bits_of, payload_bytes, payload_of

HALVES = {"value_bits": 16}
OPTIONS = [
    {"k": 0.01},
    {"k": 0.3, **HALVES},
    *({"k": k} for k in (1, 0.001, 0.3, 0.9999, 7, 10**6, 2.9)),
    {"k": 1, **HALVES},
]
PARAMS = {"topk": {"k": 0.05}}


def chosen(p, k):
    """Return the indices of the k largest magnitudes in ascending order; NaN counts as largest."""
    magnitude = np.where(np.isnan(p), np.inf, np.abs(p))
    return np.sort(np.lexsort((np.arange(p.size), -magnitude, ~np.isnan(p)))[:k])


class Replay(replay.Replay):
    """topk in NumPy."""

    def encode(self, p):
        indices = chosen(p, element_count(self.options["k"], p.size))
        values = finite_halves(p[indices]) if self.options.get("value_bits") == 16 else p[indices]
        decoded = np.zeros_like(p)  # positive zeros, because the kernel adds values to zeros
        decoded[indices] += values
        low_bits = low_bits_of(p.size, indices.size)
        return payload_of(indices, values, p.size, low_bits), decoded


def assert_sends_the_largest(x, k, isa):
    codec = kernels.Codec("topk", {"k": k}, x.size, x.dtype, isa)
    indices = chosen(x, k)
    values = np.where(np.isnan(x), np.abs(np.nan).astype(x.dtype), x)[indices]
    expected = payload_of(indices, values, x.size, low_bits_of(x.size, k))
    assert np.array_equal(codec.compress(x)[0], expected)


@settings(max_examples=10)
@given(
    st.integers(0, 3),
    st.sampled_from([1, 7, 100, 5000, 30_000, 70_000, N - 1, N]),
    arrays.dtypes,
    st.booleans(),
    arrays.isas,
    arrays.threads,
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_distribution_defeats_the_sample(name, seed, k, dtype, feedback, isa, threads):
    options = {"k": k, **({"ef": "vanilla", "mu": 0.9} if feedback else {})}
    options.update(HALVES if seed == 3 else {})
    assert_steps_equal_replay("topk", Replay, options, name, seed, dtype, isa, threads)


@arrays.each_isa
@pytest.mark.parametrize("k", [100, 5000])
def test_a_large_tensor_has_a_larger_sample(isa, k):
    n, random = 2**20 + 1, np.random.default_rng(k)
    assert_sends_the_largest(random.standard_normal(n).astype(np.float32), k, isa)
    misleading = large_where_sampled(random, n, groups=1024, runs=8 if k == 100 else 300)
    assert_sends_the_largest(misleading.astype(np.float32), k, isa)


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("n", [65_535, 65_536, 65_537, N + 3])
def test_a_payload_alone_sets_every_element_of_a_large_array(isa, dtype, n):
    x = np.random.default_rng(n).standard_normal(n).astype(dtype)
    codec = kernels.Codec("topk", {"k": 0.01}, n, dtype, isa)
    payload, expected = codec.compress(x)[0], np.zeros(n, dtype)
    indices = chosen(x, element_count(0.01, n))
    expected[indices] = x[indices]
    for offset in range(17):
        room = np.full(n + 32, 7, dtype)
        codec.decompress(payload, out=room[offset : offset + n], threads=1 + offset % 3)
        assert np.array_equal(room[offset : offset + n], expected)
        assert (room[:offset] == 7).all() and (room[offset + n :] == 7).all()


@given(st.integers(1, 5000), st.floats(1e-4, 0.999), arrays.dtypes, arrays.seeds)
def test_no_k_elements_lose_less(n, k, dtype, seed):
    x = arrays.awkward(n, dtype, seed)
    codec = kernels.Codec("topk", {"k": k}, n, dtype)
    out, _ = codec.decompress(codec.compress(x)[0])
    exact = x.astype(np.longdouble)
    kept = element_count(k, n) / n
    assert np.sum((exact - out) ** 2) <= (1 - kept) * np.sum(exact**2) * (1 + 1e-9)


@pytest.mark.parametrize("k, most", [(0.001, 12.1), (0.01, 8.7), (0.1, 5.6)])
@pytest.mark.parametrize("n", [65_536, 2**20, 2**20 + 77])
def test_an_index_takes_few_bits_and_a_value_those_asked_for(k, most, n):
    for options, value_bits in (({}, 32), (HALVES, 16)):
        codec = kernels.Codec("topk", {"k": k, **options}, n)
        count = element_count(k, n)
        assert 8 * codec.payload_bytes / count - value_bits < most
        bits = low_bits_of(n, count)
        assert codec.payload_bytes == payload_bytes(n, count, bits, value_bits // 8)


@given(
    st.lists(st.integers(0, 400), min_size=4, max_size=4),
    st.integers(4, 300),
    st.integers(0, 9),
    arrays.isas,
)
def test_a_payload_is_valid_just_if_it_has_k_indices_that_ascend_below_n(indices, n, flip, isa):
    codec = kernels.Codec("topk", {"k": 4}, n, isa=isa)
    bits, values = low_bits_of(n, 4), np.zeros(4, np.float32)
    for candidate in (np.sort(indices), np.sort(np.array(indices) % n)):
        if candidate[-1] >> bits > n - 1 >> bits:
            continue
        payload = payload_of(candidate, values, n, bits)
        assert valid(codec, payload) == bool((np.diff(candidate) > 0).all() and candidate[-1] < n)
        payload[flip // 8] ^= 1 << flip % 8  # another number of indices
        assert not valid(codec, payload) or flip >= 4 + (n - 1 >> bits)


@arrays.each_isa
@arrays.each_dtype
def test_the_residual_has_what_float16_loses(isa, dtype):
    codec = kernels.Codec("topk", {"k": 3, "ef": "vanilla", **HALVES}, 300, dtype, isa)
    state, x = codec.state(), np.zeros(300, dtype)
    x[5], x[77], x[299] = 1e5, 0.1, -65519
    payload, status = codec.compress(x, state)
    out = codec.decompress(payload)[0]
    assert status.finite and list(out[[5, 77, 299]]) == [65504, np.float16(0.1), -65504]
    assert np.array_equal(codec.residual(state), x - out) and codec.residual(state)[299] == -15


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 40), (99, 98), (N, 0), (N, 77_777)])
@pytest.mark.parametrize("options", [{"k": 1}, {"k": 10}, {"k": 10, **HALVES}])
def test_a_value_that_is_not_finite_is_sent(isa, dtype, bad, size, at, options):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    codec = kernels.Codec("topk", options, size, dtype, isa)
    payload, status = codec.compress(x)
    out, _ = codec.decompress(payload)
    assert not status.finite
    assert np.array_equal(out[at : at + 1], x[at : at + 1], equal_nan=True)


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 60, 3000, N])
def test_nans_go_before_infinities_and_those_before_numbers(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::2000], x[1::2000], x[7::2000] = np.inf, np.nan, -np.inf
    assert_sends_the_largest(x, k, isa)


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 3000, N // 2])
def test_of_more_nans_than_are_sent_the_first_are(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::3], x[1::3] = np.nan, -np.nan
    assert_sends_the_largest(x, k, isa)

"""topk: its replay in NumPy, which sorts, and its own tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, replay
from .distributions import DISTRIBUTIONS, N, assert_steps_equal_replay
from .replay import bytes_of, element_count

OPTIONS = [{"k": k} for k in (0.01, 1, 0.001, 0.3, 0.9999, 7, 10**6, 2.9)]
PARAMS = {"topk": {"k": 0.05}}


def chosen(p, k):
    """Return the indices of the k largest magnitudes in ascending order; NaN counts as largest."""
    magnitude = np.where(np.isnan(p), np.inf, np.abs(p))
    return np.sort(np.lexsort((np.arange(p.size), -magnitude, ~np.isnan(p)))[:k])


class Replay(replay.Replay):
    """topk in NumPy."""

    def encode(self, p):
        indices = chosen(p, element_count(self.options["k"], p.size))
        decoded = np.zeros_like(p)  # positive zeros, because the kernel adds values to zeros
        decoded[indices] += p[indices]
        return bytes_of(indices.astype(np.uint32), p[indices]), decoded


def indices_sent(x, k, isa):
    codec = kernels.Codec("topk", {"k": k}, x.size, x.dtype, isa)
    return codec.compress(x)[0][: 4 * k].view(np.uint32)


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
    assert_steps_equal_replay("topk", Replay, options, name, seed, dtype, isa, threads)


@given(st.integers(1, 5000), st.floats(1e-4, 0.999), arrays.dtypes, arrays.seeds)
def test_no_k_elements_lose_less(n, k, dtype, seed):
    x = arrays.awkward(n, dtype, seed)
    codec = kernels.Codec("topk", {"k": k}, n, dtype)
    out, _ = codec.decompress(codec.compress(x)[0])
    exact = x.astype(np.longdouble)
    kept = element_count(k, n) / n
    assert np.sum((exact - out) ** 2) <= (1 - kept) * np.sum(exact**2) * (1 + 1e-9)


@given(st.binary(min_size=16, max_size=16), st.integers(4, 300), arrays.isas)
def test_a_payload_is_valid_just_if_its_indices_ascend_below_n(indices, n, isa):
    codec = kernels.Codec("topk", {"k": 4}, n, isa=isa)
    small = np.frombuffer(indices, np.uint8).astype(np.uint32)[:4]
    for candidate in (np.frombuffer(indices, np.uint32), small, np.sort(small)):
        wide = candidate.astype(np.int64)
        expected = bool((np.diff(wide) > 0).all() and wide[-1] < n)
        assert codec.valid(bytes_of(candidate, np.zeros(4, np.float32))) == expected


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 40), (99, 98), (N, 0), (N, 77_777)])
@pytest.mark.parametrize("k", [1, 10])
def test_a_value_that_is_not_finite_is_sent(isa, dtype, bad, size, at, k):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    codec = kernels.Codec("topk", {"k": k}, size, dtype, isa)
    payload, status = codec.compress(x)
    out, _ = codec.decompress(payload)
    assert not status.finite
    assert np.array_equal(out[at : at + 1], x[at : at + 1], equal_nan=True)


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 60, 3000, N])
def test_nans_go_before_infinities_and_those_before_numbers(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::2000], x[1::2000], x[7::2000] = np.inf, np.nan, -np.inf
    assert np.array_equal(indices_sent(x, k, isa), chosen(x, k))


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 3000, N // 2])
def test_of_more_nans_than_are_sent_the_first_are(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::3], x[1::3] = np.nan, -np.nan
    assert np.array_equal(indices_sent(x, k, isa), chosen(x, k))

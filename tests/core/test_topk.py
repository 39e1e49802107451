"""topk: the kernels against a NumPy replay that sorts, each other, and BytePS's numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, decoding, feedback, golden
from .decoding import check_decoding, check_sum
from .feedback import Feedback

N = 100_000  # large enough for a threshold from a sample, and for several blocks


def chosen(p, k):
    """The indices of the k largest magnitudes, ascending; NaN is the largest."""
    magnitude = np.where(np.isnan(p), np.inf, np.abs(p))
    return np.sort(np.lexsort((np.arange(p.size), -magnitude, ~np.isnan(p)))[:k])


def payload_of(p, k):
    indices = chosen(p, k)
    return np.concatenate([indices.astype(np.uint32).view(np.uint8), p[indices].view(np.uint8)])


def decoded(p, k):
    """With zeros that are positive, since values are added to them."""
    out = np.zeros_like(p)
    out[chosen(p, k)] += p[chosen(p, k)]
    return out


def indices_of(payload, k):
    return payload[: 4 * k].copy().view(np.uint32)


class Replay(Feedback):
    """topk in NumPy."""

    def step(self, gradient, k, *scales):
        """Returns p."""
        p = self.correct(gradient, *scales)
        if self.residual is not None:
            self.residual = p.copy()
            self.residual[chosen(p, k)] = 0
        return p


def number(share, size):
    """k of size elements: 1, all, or in between."""
    return min(size, max(1, round(share * size)))


shares = st.one_of(st.sampled_from([0.0, 0.001, 0.01, 1.0]), st.floats(0, 1))


@given(
    arrays.sizes,
    shares,
    arrays.dtypes,
    arrays.seeds,
    feedback.kinds,
    feedback.scales,
    arrays.how,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    size, share, dtype, seed, kind, scale, how, offset
):
    k = number(share, size)
    guarded = arrays.Guarded(offset)
    replay = Replay(size, dtype, **kind)
    state = replay.state(guarded.copy)
    for step, ratio in enumerate(feedback.RATIOS):
        gradient = guarded.copy(arrays.awkward(size, dtype, seed + step))
        payload = guarded.empty(kernels.topk.capacity(size, dtype, k=k), np.uint8)
        p = replay.step(gradient, k, scale, ratio)

        _, largest = kernels.topk.compress(
            gradient, k, gradient_scale=scale, ratio=ratio, payload=payload, **how, **state
        )

        assert np.array_equal(payload, payload_of(p, k))
        assert largest == np.abs(p).max(initial=0)
        replay.check(state)
    guarded.check()


def normal(random, n):
    return random.standard_normal(n)


def large_where_sampled(random, n, groups=1024, runs=5):
    """80 large ones where topk_threshold.h looks for k = 100, so that it expects many more."""
    stride = n // groups
    values = normal(random, n)
    for group in range(runs):
        start = group * stride + ((group * 2654435761 % 2**32) * (stride - 15) >> 32)
        values[start : start + 16] += 100
    return values


DISTRIBUTIONS = {
    "normal": normal,
    "all zero": lambda random, n: np.zeros(n),
    "all equal": lambda random, n: np.full(n, -1.5),
    "of one magnitude": lambda random, n: random.choice([-2.0, 2.0], n),
    "half zero": lambda random, n: normal(random, n) * (random.random(n) < 0.5),
    "nearly all zero": lambda random, n: normal(random, n) * (random.random(n) < 2e-4),
    "few values": lambda random, n: random.integers(-3, 4, n),
    "nearly all of few values": lambda random, n: random.integers(-3, 4, n)
    * (1 + 1e-3 * normal(random, n)),
    "ascending": lambda random, n: np.sort(normal(random, n)),
    "descending": lambda random, n: np.sort(np.abs(normal(random, n)))[::-1],
    "periodic": lambda random, n: 1 + np.arange(n) % 128,
    "large ones in one place": lambda random, n: np.where(np.arange(n) // 700 == 3, 1e6, 1)
    * normal(random, n),
    "all equal but a few": lambda random, n: np.where(
        random.random(n) < 2e-3, normal(random, n), 0.1
    ),
    "large ones just in the sample": large_where_sampled,
    "heavy-tailed": lambda random, n: random.standard_cauchy(n),
    "denormal": lambda random, n: normal(random, n) * 1e-40,
    "denormal in float64": lambda random, n: normal(random, n) * 1e-310,
    "of all magnitudes": lambda random, n: normal(random, n) * 10.0 ** random.integers(-37, 37, n),
}


@settings(max_examples=10)
@given(
    st.integers(0, 3),
    st.sampled_from([1, 7, 100, 5000, 30_000, 70_000, N - 1, N]),
    arrays.dtypes,
    feedback.kinds,
    arrays.how,
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_distribution_defeats_the_sample(name, seed, k, dtype, kind, how):
    random = np.random.default_rng(seed)
    replay = Replay(N, dtype, **kind)
    state = replay.state()
    for _ in range(2):
        x = np.ascontiguousarray(DISTRIBUTIONS[name](random, N)).astype(dtype)
        p = replay.step(x, k)
        payload, _ = kernels.topk.compress(x, k, **how, **state)
        assert np.array_equal(payload, payload_of(p, k))
        replay.check(state)


@given(arrays.sizes, shares, arrays.dtypes, arrays.seeds, arrays.how, arrays.offsets)
def test_decoding_gives_what_was_sent_and_zeros_and_adding_adds_it(
    size, share, dtype, seed, how, offset
):
    k = number(share, size)
    x = arrays.awkward(size, dtype, seed)
    payload, _ = kernels.topk.compress(x, k)
    guarded, out = arrays.Guarded(offset), decoded(x, k)
    check_decoding(kernels.topk, payload, out, seed + 1, guarded, how, k=k)
    if size:
        exact = x.astype(np.longdouble)
        lost = np.sum((exact - out) ** 2)
        assert lost <= (1 - k / size) * np.sum(exact**2) * (1 + 1e-9)


@given(
    arrays.sizes,
    shares,
    arrays.dtypes,
    arrays.seeds,
    decoding.counts,
    decoding.paddings,
    arrays.how,
    arrays.offsets,
)
def test_summing_payloads_equals_adding_them_in_order(
    size, share, dtype, seed, count, padding, how, offset
):
    k = number(share, size)

    def encode(i):
        x = arrays.awkward(size, dtype, seed + i)
        return payload_of(x, k), decoded(x, k)

    rows = count, padding, arrays.Guarded(offset)
    check_sum(kernels.topk, size, dtype, encode, *rows, how, k=k)


@arrays.each_isa
@pytest.mark.parametrize(
    "indices", [[0, 1, 10], [2, 1, 3], [1, 1, 3], [0, 1, 2**32 - 1], [2**31, 2**31 + 1, 2**31 + 2]]
)
def test_indices_that_do_not_ascend_below_n_are_refused(indices, isa):
    payload = np.zeros(24, np.uint8)
    payload[:12] = np.array(indices, np.uint32).view(np.uint8)
    out = np.zeros(10, np.float32)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.topk.decompress(payload, 10, k=3, isa=isa)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.topk.decompress_add(payload, out, k=3, isa=isa)
    with pytest.raises(ValueError, match="payload must be one of 10 elements"):
        kernels.topk.decompress_sum(payload[None], 10, k=3, isa=isa)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 300), arrays.isas)
def test_a_payload_is_valid_just_if_its_indices_ascend_below_n(indices, n, isa):
    small = np.frombuffer(indices, np.uint8).astype(np.uint32)[:4]
    for candidate in (np.frombuffer(indices, np.uint32), small, np.sort(small)):
        payload = np.concatenate([candidate.view(np.uint8), np.zeros(16, np.uint8)])
        wide = candidate.astype(np.int64)
        expected = bool((np.diff(wide) > 0).all() and wide[-1] < n)
        assert kernels.topk.valid(payload, n, k=4, isa=isa) == expected


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(99, 0), (99, 40), (99, 98), (N, 0), (N, 77_777)])
@pytest.mark.parametrize("k", [1, 10])
def test_a_value_that_is_not_finite_is_sent_and_shows_in_the_largest(isa, dtype, bad, size, at, k):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    residual = np.zeros(size, dtype)
    payload, largest = kernels.topk.compress(x, k, residual=residual, isa=isa)
    out = kernels.topk.decompress(payload, size, dtype, k=k, isa=isa)
    assert np.isnan(largest) if np.isnan(bad) else largest == np.inf
    assert np.array_equal(out[at : at + 1], x[at : at + 1], equal_nan=True)
    assert np.isfinite(residual).all() and residual[at] == 0


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 60, 3000, N])
def test_nans_go_before_infinities_and_those_before_numbers(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::2000], x[1::2000], x[7::2000] = np.inf, np.nan, -np.inf
    payload, _ = kernels.topk.compress(x, k, isa=isa)
    assert np.array_equal(indices_of(payload, k), chosen(x, k))


@arrays.each_isa
@pytest.mark.parametrize("k", [1, 3000, N // 2])
def test_of_more_nans_than_are_sent_the_first_are(isa, k):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[::3], x[1::3] = np.nan, -np.nan
    payload, _ = kernels.topk.compress(x, k, isa=isa)
    assert np.array_equal(indices_of(payload, k), chosen(x, k))


def test_a_k_that_is_not_from_1_to_n_is_refused():
    for k in (0, 11, -1):
        with pytest.raises(ValueError, match="k must be from 1 to 10"):
            kernels.topk.compress(np.zeros(10, np.float32), k)


@arrays.each_isa
def test_a_single_compression_decodes_to_byteps_numbers(isa):
    cases = golden.compressions("topk")
    assert len(cases) == 12
    for options, x, expected in cases:
        k = int(options["k"])
        payload, _ = kernels.topk.compress(x, k, isa=isa)
        decoded = kernels.topk.decompress(payload, x.size, k=k, isa=isa)
        np.testing.assert_array_max_ulp(decoded, expected, 2)


@arrays.each_isa
@pytest.mark.parametrize("run", golden.runs("topk"), ids=golden.name_of)
def test_each_step_with_feedback_from_byteps_state_differs_by_rounding_only(run, isa):
    k = int(run.options["k"])
    state = Replay(run.size, np.float32, run.mu, feedback=True).state()

    def step(gradient, ratio):
        payload, _ = kernels.topk.compress(gradient, k, ratio=ratio, isa=isa, **state)
        decoded = kernels.topk.decompress(payload, run.size, k=k, isa=isa)
        got = {"p": decoded + state["residual"], "d": decoded, "e": state["residual"]}
        if run.mu:
            got["m"] = state["momentum"]
        return got

    run.check(step, golden.restorer(state))

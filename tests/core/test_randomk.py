"""randomk: the kernels against a NumPy replay that draws one by one, and BytePS's numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, feedback, golden
from .feedback import Feedback

WORD = 2**64
N = 100_000  # several blocks


def stream_of(seed):
    return np.random.default_rng(seed).integers(1, WORD, 2, np.uint64)


def draws(stream, k):
    """The next k draws of xorshift128+, and the state after them."""
    a, b = map(int, stream)
    drawn = []
    for _ in range(k):
        t = a ^ a << 23 & WORD - 1
        a, b = b, t ^ t >> 17 ^ b ^ b >> 26
        drawn.append((a + b) % WORD)
    return drawn, np.array([a, b], np.uint64)


def indices_of(stream, n, k):
    return np.array([draw % n for draw in draws(stream, k)[0]], np.intp) if n else None


class Replay(Feedback):
    """randomk in NumPy."""

    def step(self, gradient, k, stream, *scales):
        """Returns the payload."""
        T, n = self.dtype, gradient.size
        p = self.correct(gradient, *scales)
        if self.residual is not None:
            self.residual = p.copy()
        if n == 0:
            return np.zeros(k, T)
        indices = indices_of(stream, n, k)
        if self.residual is not None:
            self.residual[indices] = 0
            return p[indices]
        return p[indices] * (T(n) / T(k))


def decoded(payload, n, stream):
    out = np.zeros(n, payload.dtype)
    if n:
        out[indices_of(stream, n, payload.size)] = payload
    return out


sizes = st.one_of(arrays.sizes, st.integers(0, 5000))
counts = st.one_of(st.sampled_from([1, 2, 63, 64, 65]), st.integers(1, 1000))


@given(
    sizes,
    counts,
    arrays.dtypes,
    arrays.seeds,
    feedback.kinds,
    feedback.scales,
    arrays.how,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    size, k, dtype, seed, kind, scale, how, offset
):
    guarded = arrays.Guarded(offset)
    replay = Replay(size, dtype, **kind)
    state = dict(replay.state(guarded.copy), stream=stream_of(seed))
    for step, ratio in enumerate(feedback.RATIOS):
        gradient = guarded.copy(arrays.awkward(size, dtype, seed + step))
        payload = guarded.empty(k, dtype)
        with np.errstate(over="ignore"):
            expected = replay.step(gradient, k, state["stream"], scale, ratio)
        _, stream_after = draws(state["stream"], k if size else 0)

        _, check = kernels.randomk.compress(
            gradient, k, gradient_scale=scale, ratio=ratio, payload=payload, **how, **state
        )

        assert arrays.same_bits(payload, expected)
        assert check == 0 if np.isfinite(expected).all() else np.isnan(check)
        assert np.array_equal(state["stream"], stream_after)
        replay.check(state)
    guarded.check()


@given(sizes, counts, arrays.dtypes, arrays.seeds, arrays.isas, arrays.threads, arrays.offsets)
def test_decoding_gives_what_was_sent_and_zeros_and_adding_adds_it_once(
    size, k, dtype, seed, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    x, before = arrays.awkward(size, dtype, seed), arrays.awkward(size, dtype, seed + 1)
    start = stream_of(seed)
    residual = np.zeros(size, dtype)
    payload, _ = kernels.randomk.compress(x, k, start.copy(), residual=residual)
    payload = guarded.copy(payload)

    out = kernels.randomk.decompress(
        payload, size, start, out=guarded.empty(size, dtype), threads=threads, isa=isa
    )
    added = kernels.randomk.decompress_add(payload, guarded.copy(before), start, isa=isa)

    assert arrays.same_bits(out, decoded(payload, size, start))
    assert np.array_equal(out + residual, x)
    assert np.array_equal(added, before + out)
    guarded.check()


@given(sizes, counts, arrays.dtypes, arrays.seeds, st.integers(1, 5))
def test_the_sum_of_payloads_decodes_to_the_sum_of_what_they_decode_to(
    size, k, dtype, seed, workers
):
    start = stream_of(seed)
    payload_sum, expected = np.zeros(k, dtype), np.zeros(size, dtype)
    for worker in range(workers):
        x = arrays.awkward(size, dtype, seed + worker) / 2**20  # times n / k is finite
        payload, _ = kernels.randomk.compress(x, k, start.copy())
        payload_sum = payload_sum + payload
        expected = expected + kernels.randomk.decompress(payload, size, start)
    assert np.array_equal(kernels.randomk.decompress(payload_sum, size, start), expected)


@pytest.mark.parametrize("n, k", [(50, 5), (50, 50), (7, 12)])
def test_decoding_is_unbiased_but_for_repeats(n, k):
    rounds = 4000
    x = np.random.default_rng(0).standard_normal(n)
    total, squares = np.zeros(n), np.zeros(n)
    stream = stream_of(1)
    for _ in range(rounds):
        start = stream.copy()
        out = kernels.randomk.decompress(kernels.randomk.compress(x, k, stream)[0], n, start)
        total += out
        squares += out**2
    mean = total / rounds
    error = np.sqrt((squares / rounds - mean**2) / rounds)
    expected = x * (n / k) * (1 - (1 - 1 / n) ** k)
    assert (np.abs(mean - expected) <= 4 * error).all()


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 16_383, 77_777, N - 1])
@pytest.mark.parametrize("state", [{"feedback": True}, {"mu": 0.9}, {"mu": 0.9, "feedback": True}])
def test_with_a_sweep_any_value_that_is_not_finite_shows(isa, dtype, bad, at, state):
    x = np.random.default_rng(0).standard_normal(N).astype(dtype)
    kept = Replay(N, dtype, **state).state()
    assert kernels.randomk.compress(x, 10, stream_of(0), isa=isa, **kept)[1] == 0
    x[at] = bad
    assert np.isnan(kernels.randomk.compress(x, 10, stream_of(0), isa=isa, **kept)[1])


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_a_sweep_a_value_that_is_not_finite_shows_just_if_it_is_sent(isa, dtype, bad):
    sent = indices_of(stream_of(0), N, 10)
    x = np.ones(N, dtype)
    x[[i for i in range(20) if i not in sent]] = bad
    assert kernels.randomk.compress(x, 10, stream_of(0), isa=isa)[1] == 0
    x[sent[7]] = bad
    payload, check = kernels.randomk.compress(x, 10, stream_of(0), isa=isa)
    assert np.isnan(check) and not np.isfinite(payload[7])


@arrays.each_isa
def test_a_value_that_the_factor_makes_infinite_shows(isa):
    x = np.full(100, 1e38, np.float32)
    payload, check = kernels.randomk.compress(x, 2, stream_of(0), isa=isa)
    assert np.isinf(payload).all() and np.isnan(check)


def test_of_no_elements_nothing_is_drawn_and_zeros_are_sent():
    stream = stream_of(0)
    payload, check = kernels.randomk.compress(np.empty(0, np.float32), 3, stream)
    assert payload.tolist() == [0, 0, 0] and check == 0
    assert np.array_equal(stream, stream_of(0))
    assert kernels.randomk.decompress(payload, 0, stream).size == 0


@arrays.each_isa
def test_a_single_compression_decodes_to_byteps_numbers(isa):
    cases = golden.compressions("randomk")
    assert len(cases) == 32
    for options, x, expected in cases:
        start = np.full(2, int(options["state_seed"]), np.uint64)
        payload, _ = kernels.randomk.compress(x, int(options["k"]), start.copy(), isa=isa)
        out = kernels.randomk.decompress(payload, x.size, start, isa=isa)
        np.testing.assert_array_max_ulp(out, expected, 2)

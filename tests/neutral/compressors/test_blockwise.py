"""blockwise: its replay in NumPy, its error bounds, and its own tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import draw

from . import replay
from .distributions import DISTRIBUTIONS, assert_steps_equal_replay
from .replay import bytes_of

LIMIT = 2.0**88
SIGNS = kernels.position((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))


def example(bits=4, block=128, symmetric=True, hadamard=False, stochastic=False):
    return dict(
        bits=bits, block=block, symmetric=symmetric, hadamard=hadamard, stochastic=stochastic
    )


OPTIONS = [
    example(),
    example(8, 2048, symmetric=False),
    example(3, 64, stochastic=True),
    example(4, 256, hadamard=True),
    example(2, 512, symmetric=False, hadamard=True, stochastic=True),
    example(2, 64, hadamard=True),
    example(5, 1024, stochastic=True),
    example(7, 64, symmetric=False),
    example(6, 2048, hadamard=True, stochastic=True),
]
PARAMS = {
    "blockwise": {"bits": 4, "block": 128},
    "blockwise hadamard": {"bits": 2, "hadamard": True, "block": 64},
    "blockwise stochastic": {
        "bits": 3,
        "block": 128,
        "stochastic": True,
        "symmetric": False,
        "seed": 3,
    },
}
each_kind = pytest.mark.parametrize(
    "symmetric, hadamard", [(s, h) for s in (True, False) for h in (True, False)]
)
all_options = st.builds(
    example,
    st.integers(2, 8),
    st.sampled_from([64, 128, 256, 512, 1024, 2048]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def bfloat16_below(x):
    """Return the bits of the largest bfloat16 that is at most x."""
    near = x.astype(np.float32)
    below = near.view(np.int32).astype(np.int64) % 2**32 + (near > x) * np.where(x < 0, 1, -1)
    return ((below + (x < 0) * 0xFFFF) >> 16).astype(np.uint16)


def bfloat16_above(x):
    """Return the bits of the least bfloat16 that is at least the float32 nearest to x > 0."""
    return (x.astype(np.float32).view(np.uint32) + np.uint32(0xFFFF) >> 16).astype(np.uint16)


def bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def transform(x):
    """Return the Walsh-Hadamard transform of rows, not normalised."""
    shape, distance = x.shape, 1
    while distance < shape[1]:
        pairs = x.reshape(-1, 2, distance)
        a, b = pairs[:, 0], pairs[:, 1]
        x = np.stack([a + b, a - b], axis=1).reshape(shape)
        distance *= 2
    return x


def signs(block):
    """Return the signs of a rotation."""
    draws = draw(SIGNS, 32)
    bits = draws[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    return 1 - 2.0 * bits.ravel()[:block].astype(np.float64)


def packed(codes, bits):
    """Return codes, one byte each, as the payload has them."""
    groups, parts, shift = np.pad(codes, (0, -codes.size % 128)).reshape(-1, 128), [], 0
    for width in (8, 4, 2, 1):
        if bits & width:
            part = groups >> shift & 2**width - 1
            places = (np.arange(8 // width) * width)[:, None]
            parts.append((part.reshape(-1, 8 // width, 16 * width) << places).sum(axis=1))
            shift += width
    return np.concatenate(parts, axis=1).astype(np.uint8).ravel()


class Replay(replay.Replay):
    """blockwise in NumPy."""

    def encode(self, p):
        bits, block, T = self.options["bits"], self.options["block"], self.T
        symmetric, hadamard = self.options["symmetric"], self.options["hadamard"]
        blocks = np.pad(p, (0, -p.size % block)).reshape(-1, block)
        coded = blocks.size if hadamard else p.size
        x = transform(blocks * (signs(block) / block).astype(T)) if hadamard else blocks

        most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        low = np.zeros(len(x), np.uint16)
        greatest = np.abs(x).max(axis=1) if symmetric else x.max(axis=1)
        limit, least_step = T(LIMIT), T(2.0**-100)
        if not symmetric:
            low = bfloat16_below(np.clip(x.min(axis=1), -limit, limit) + T(0))
        width = np.clip(greatest, -limit, limit) - bfloat16(low).astype(T)
        step = bfloat16_above(np.maximum(width / T(most), least_step))

        steps, lows = bfloat16(step).astype(T)[:, None], bfloat16(low).astype(T)[:, None]
        place = (x - lows) * (T(1) / steps)
        if self.options["stochastic"]:
            place = place + self.offsets(coded, x.size).reshape(x.shape)
        q = np.rint(np.clip(place, -most if symmetric else 0, most))
        decoded = q * steps + lows
        if hadamard:
            decoded = transform(decoded) * signs(block).astype(T)
        codes = (q + (2 ** (bits - 1) if symmetric else 0)).astype(np.uint8).ravel()
        codes = codes if hadamard else codes[: -(-p.size // 128) * 128]
        payload = bytes_of(packed(codes, bits), step, low[: 0 if symmetric else low.size])
        return payload, decoded.ravel()[: p.size]

    def offsets(self, coded, count):
        """Return `count` random offsets; those after `coded` elements are not used."""
        groups = -(-coded // 64)
        draws = self.draw(16 * groups).reshape(groups, 1, 16)
        parts = np.arange(4, dtype=np.uint64)[:, None] * np.uint64(16)
        numbers = (draws >> parts & np.uint64(0xFFFF)).astype(self.T).ravel()
        unused = max(0, count - numbers.size)
        return np.pad((numbers * 2.0**-16 + (2.0**-17 - 0.5)).astype(self.T), (0, unused))[:count]


def sent(options, x, isa=None, **kwargs):
    """Return the decoded values."""
    codec = kernels.Codec("blockwise", options, x.size, x.dtype, isa)
    payload, status = codec.compress(x, **kwargs)
    assert status.finite
    return codec.decompress(payload)[0]


def steps_of(options, x):
    """Return the step and the low of each block of x, as the payload has them."""
    codec = kernels.Codec("blockwise", options, x.size, x.dtype)
    blocks = -(-x.size // options["block"])
    numbers = bfloat16(codec.compress(x)[0].view(np.uint16)[-blocks * (2 - options["symmetric"]) :])
    return numbers[:blocks], numbers[blocks:]


@settings(max_examples=8)
@given(all_options, st.integers(0, 3), arrays.dtypes, st.booleans(), arrays.isas, arrays.threads)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_payloads_of_all_distributions_are_those_of_the_replay(
    name, options, seed, dtype, feedback, isa, threads
):
    options = {**options, **({"ef": "vanilla", "mu": 0.9} if feedback else {}), "stochastic": False}
    assert_steps_equal_replay("blockwise", Replay, options, name, seed, dtype, isa, threads)


@given(
    st.integers(2, 8),
    st.sampled_from([64, 128, 2048]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 5000),
    arrays.dtypes,
    arrays.isas,
    arrays.seeds,
)
def test_an_element_is_within_half_a_step_and_within_a_step_if_stochastic(
    bits, block, symmetric, stochastic, n, dtype, isa, seed
):
    options = example(bits, block, symmetric, False, stochastic)
    x = np.clip(arrays.awkward(n, dtype, seed), -LIMIT, LIMIT)
    out = sent(options, x, isa)
    levels = 2 ** (bits - symmetric) - 1
    for begin in range(0, n, block):
        part = np.pad(x[begin : begin + block], (0, max(0, begin + block - n)))
        ends = np.abs(part).max() if symmetric else np.abs([part.min(), part.max()]).sum()
        exact = part.astype(np.longdouble)
        width = exact.max() - exact.min() if not symmetric else np.abs(exact).max()
        # low and step are rounded outwards to 8 bits.
        step = max(
            (width + (0 if symmetric else 2.0**-7 * ends)) / levels * (1 + 2.0**-7), 2.0**-99
        )
        error = np.abs(exact[: n - begin] - out[begin : begin + block])
        bound = step * (1 if stochastic else 0.5) * (1 + 1e-4)
        assert (error <= bound + 2 * np.finfo(dtype).eps * ends).all()


@given(st.integers(2, 8), st.integers(1, 3000), arrays.dtypes, arrays.isas, arrays.seeds)
def test_symmetric_rounding_loses_no_element_more_than_its_magnitude(bits, n, dtype, isa, seed):
    x = np.clip(arrays.awkward(n, dtype, seed), -LIMIT, LIMIT)
    out = sent(example(bits), x, isa)
    assert (np.abs(x - out) <= np.abs(x) * (1 + 1e-6)).all()
    assert np.array_equal(sent(example(bits), -x, isa), -out)


@arrays.each_isa
@arrays.each_dtype
@each_kind
@pytest.mark.parametrize("stochastic", [False, True])
def test_zeros_decode_to_zeros(isa, dtype, symmetric, hadamard, stochastic):
    x = np.array([0.0, -0.0] * 500, dtype)
    out = sent(example(3, 64, symmetric, hadamard, stochastic), x, isa)
    assert not out.any()


@pytest.mark.parametrize("bits", range(2, 9))
def test_equal_elements_that_a_bfloat16_can_hold_are_exact(bits):
    x = np.full(1000, -1.5, np.float32)
    x[-(1000 % 128) :] = 0  # the last block is filled up with zeros
    assert np.array_equal(sent(example(bits, symmetric=False), x), x)


@pytest.mark.parametrize("bits", range(2, 9))
@each_kind
def test_the_mean_over_many_draws_is_the_element(bits, symmetric, hadamard):
    options, rounds = example(bits, 64, symmetric, hadamard, True), 2000
    x = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    codec, total = kernels.Codec("blockwise", options, x.size), np.zeros(200)
    for step in range(rounds):
        position = kernels.position((2**63 + 5, 2**60 + 9), step * codec.draws)
        total += codec.decompress(codec.compress(x, position=position)[0])[0]
    # An element of a rotated block is the sum of 64 levels with independent errors.
    step = np.repeat(steps_of(options, x)[0], 64)[:200] * (8 if hadamard else 1)
    assert (np.abs(total / rounds - x) <= 5 * step * 0.5 / np.sqrt(rounds)).all()


@arrays.each_isa
def test_draws_of_different_elements_are_independent(isa):
    x = np.full(70_000, 0.5, np.float32)
    x[::64] = 1
    out = sent(example(2, 64, stochastic=True), x, isa, position=kernels.position((3, 5)))
    up = (out == 1).reshape(-1)[: 1088 * 64].reshape(-1, 64)[:, 1:].astype(float)
    correlation = np.corrcoef(up.T)
    np.fill_diagonal(correlation, 0)
    assert abs(up.mean() - 0.5) < 0.01 and np.abs(correlation).max() < 0.2


def test_a_rotation_spreads_a_large_element():
    random = np.random.default_rng(0)
    x = random.standard_normal(128 * 500).astype(np.float32)
    x[::128] *= 50
    error = {
        hadamard: np.linalg.norm(x - sent(example(4, hadamard=hadamard), x))
        for hadamard in (False, True)
    }
    assert error[True] < 0.6 * error[False]


@pytest.mark.parametrize("block", [64, 128, 256, 512, 1024, 2048])
def test_a_rotation_spreads_equal_elements_and_waves_too(block):
    for x in (np.ones(block), np.arange(block) // 2 % 2 - 0.5, np.sin(np.arange(block))):
        rotated = transform((x * signs(block))[None])[0] / np.sqrt(block)
        assert np.abs(rotated).max() < 5 * np.sqrt(np.mean(x**2))


@each_kind
@pytest.mark.parametrize("bits", [2, 4])
def test_with_feedback_the_sum_of_what_is_sent_follows_the_sum_of_the_gradients(
    bits, symmetric, hadamard
):
    options = {**example(bits, 64, symmetric, hadamard), "ef": "vanilla"}
    codec, random = kernels.Codec("blockwise", options, 1000), np.random.default_rng(2)
    state, residuals = codec.state(), []
    for _ in range(300):
        gradient = random.standard_normal(1000).astype(np.float32)
        codec.compress(gradient, state)
        residuals.append(np.abs(codec.residual(state)).max())
    assert max(residuals[150:]) < 1.5 * max(residuals[:150]) < 20


@arrays.each_isa
@arrays.each_dtype
@each_kind
def test_an_element_beyond_the_limit_is_sent_as_the_limit_and_the_rest_waits(
    isa, dtype, symmetric, hadamard
):
    options = {**example(8, 64, symmetric, hadamard), "ef": "vanilla"}
    codec = kernels.Codec("blockwise", options, 300, dtype, isa)
    state, x = codec.state(), np.zeros(300, dtype)
    x[5], x[299] = np.finfo(dtype).max, -1e30
    payload, status = codec.compress(x, state)
    out, read = codec.decompress(payload)
    assert status.finite and read.finite and np.isfinite(codec.residual(state)).all()
    assert np.array_equal(codec.residual(state), x - out)
    assert hadamard or LIMIT <= out[5] <= LIMIT * (1 + 2.0**-7)


@arrays.each_isa
@arrays.each_dtype
@each_kind
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(1, 0), (99, 98), (70_001, 69_999), (70_001, 3)])
def test_an_element_that_is_not_finite_makes_its_block_nans(
    isa, dtype, symmetric, hadamard, bad, size, at
):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    codec = kernels.Codec("blockwise", example(4, 64, symmetric, hadamard), size, dtype, isa)
    payload, status = codec.compress(x, threads=2)
    out, read = codec.decompress(payload)
    assert not status.finite and not read.finite
    # A payload that is not finite also gets a NaN as its first step.
    assert {0, at // 64} == set(np.flatnonzero(np.isnan(out)) // 64)


@pytest.mark.parametrize("number, finite", [(0x6F7F, True), (0x6F80, False), (0xFFC0, False)])
@pytest.mark.parametrize("place", [-1, -6])
def test_a_step_or_low_that_could_overflow_is_not_finite(number, finite, place):
    codec = kernels.Codec("blockwise", example(8, 128, symmetric=False, hadamard=True), 300)
    payload, _ = codec.compress(np.ones(300, np.float32))
    payload.view(np.uint16)[place] = number
    payload[: -2 * 6] = 255
    out, status = codec.decompress(payload)
    assert status.finite == finite
    assert np.isfinite(out).all() or not finite


@pytest.mark.parametrize(
    "options, n, expected",
    [
        (example(), 2**20, 2**20 * 4.125 / 8),
        (example(2, 2048), 2**20, 2**20 * (2 + 16 / 2048) / 8),
        (example(3, 128, symmetric=False), 128, 48 + 4),
        (example(4, 2048), 100, 64 + 2),
        (example(4, 2048, hadamard=True), 100, 1024 + 2),
        (example(4, 64, hadamard=True), 100, 64 + 4),
        (example(), 0, 0),
    ],
)
def test_a_payload_has_the_length_that_follows_from_the_options(options, n, expected):
    assert kernels.Codec("blockwise", options, n).payload_bytes == expected


@given(all_options, st.integers(0, 300), arrays.dtypes)
def test_a_call_draws_only_if_stochastic(options, n, dtype):
    codec = kernels.Codec("blockwise", options, n, dtype)
    coded = -(-n // options["block"]) * options["block"] if options["hadamard"] else n
    assert codec.draws == (16 * -(-coded // 64) if options["stochastic"] else 0)


@pytest.mark.parametrize(
    "options, message",
    [
        (example(block=32), "block must be a power of two from 64 to 2048, got 32"),
        (example(block=4096), "block must be a power of two from 64 to 2048, got 4096"),
        (example(block=96), "block must be a power of two from 64 to 2048, got 96"),
        (example(1), "bits must be a whole number from 2 to 8, got 1"),
        (example(9), "bits must be a whole number from 2 to 8, got 9"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        kernels.Codec("blockwise", options, 10)

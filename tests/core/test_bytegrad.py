"""bytegrad: the kernels against a NumPy replay, its bound, each other, and payloads that lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gluon_gc import kernels

from . import arrays, decoding, feedback
from .decoding import check_decoding, check_sum
from .feedback import Feedback


class Steps:
    """The 255 steps from lo to hi in NumPy, lo < hi."""

    def __init__(self, lo, hi):
        T = type(lo)
        far = T(2.0**64 if T is np.float32 else 2.0**512)
        with np.errstate(over="ignore"):
            width = hi - lo
        unit = T(1) / far if width > far else far if width < T(1) / far else T(1)
        self.lo, self.hi, self.unit, self.T = lo, hi, unit, T
        self.width = hi * unit - lo * unit

    def nearest(self, p):
        place = (p * self.unit - self.lo * self.unit) * (self.T(255) / self.width)
        return np.rint(place).astype(np.uint8)

    def decode(self, q):
        lower = q < 128
        from_end = np.where(lower, q, q - self.T(255)).astype(self.T)
        away = from_end * (self.width / self.T(255)) * (self.T(1) / self.unit)
        return np.where(lower, self.lo, self.hi) + away


def encode(p):
    """The payload of p and what it decodes to."""
    T = p.dtype.type
    lo, hi = (p.min() + T(0), p.max() + T(0)) if p.size else (T(0), T(0))
    if lo == hi:
        q, decoded = np.empty(0, np.uint8), np.full_like(p, lo)
    else:
        steps = Steps(lo, hi)
        q = steps.nearest(p)
        decoded = steps.decode(q)
    head = np.array([4 + 2 * p.itemsize + q.size], np.uint32).view(np.uint8)
    return np.concatenate([head, np.array([lo, hi]).view(np.uint8), q]), decoded


class Replay(Feedback):
    """bytegrad in NumPy."""

    def step(self, *gradient):
        """Returns p and its payload."""
        p = self.correct(*gradient)
        payload, decoded = encode(p)
        if self.residual is not None:
            self.residual = p - decoded if (p != p[:1]).any() else np.zeros_like(p)
        return p, payload


def wide(dtype):
    """Finite values of every magnitude, bits and all."""
    return npst.arrays(
        dtype,
        st.integers(0, 80),
        elements=st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False).filter(np.isfinite),
    )


def spread(random, size, dtype):
    """Values whose range is anything from the smallest to the widest there can be."""
    info = np.finfo(dtype)
    low, high = np.log2(info.smallest_subnormal), info.maxexp
    centre, width = random.uniform(low, high - 1, 2)
    values = random.choice([-1, 0, 1]) * 2.0**centre + 2.0**width * random.uniform(-1, 1, size)
    return np.clip(values, info.min, info.max).astype(dtype)


def check_bound(x, out):
    """Each element within half a step, and the rounding of T, of what it decodes to."""
    info = np.finfo(x.dtype)
    exact = x.astype(np.longdouble)
    half_step = (exact.max() - exact.min()) / 255 / 2
    rounding = 2 * np.spacing(np.abs(x).max()).astype(np.longdouble)
    assert (np.abs(exact - out) <= half_step * (1 + 3 * 255 * info.eps) + rounding).all()
    assert x.min() == out.min() == out[x.argmin()]
    assert x.max() == out.max() == out[x.argmax()]


@given(
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    feedback.kinds,
    feedback.scales,
    arrays.how,
    arrays.offsets,
)
def test_every_instruction_set_and_number_of_threads_gives_the_bits_of_the_replay(
    size, dtype, seed, kind, scale, how, offset
):
    guarded = arrays.Guarded(offset)
    replay = Replay(size, dtype, **kind)
    state = replay.state(guarded.copy)
    for step, ratio in enumerate(feedback.RATIOS):
        gradient = guarded.copy(arrays.awkward(size, dtype, seed + step))
        payload = guarded.empty(kernels.bytegrad.capacity(size, dtype), np.uint8)
        p, expected = replay.step(gradient, scale, ratio)

        _, largest = kernels.bytegrad.compress(
            gradient, gradient_scale=scale, ratio=ratio, payload=payload, **how, **state
        )

        assert largest == np.abs(p).max(initial=0)
        assert np.array_equal(arrays.used(payload), expected)
        replay.check(state)
    guarded.check()


@given(arrays.sizes, arrays.dtypes, arrays.seeds, arrays.how, arrays.offsets)
def test_decoding_gives_what_the_replay_rounded_to_and_adding_adds_it(
    size, dtype, seed, how, offset
):
    payload, decoded = encode(arrays.awkward(size, dtype, seed))
    check_decoding(kernels.bytegrad, payload, decoded, seed + 1, arrays.Guarded(offset), how)


@given(
    arrays.sizes,
    arrays.dtypes,
    arrays.seeds,
    decoding.counts,
    decoding.paddings,
    arrays.how,
    arrays.offsets,
)
def test_summing_payloads_of_any_length_equals_adding_them_in_order(
    size, dtype, seed, count, padding, how, offset
):
    def encode_one(i):
        return encode(arrays.awkward(size, dtype, seed + i) * dtype(i != 1))

    rows = count, padding, arrays.Guarded(offset)
    check_sum(kernels.bytegrad, size, dtype, encode_one, *rows, how)


@given(st.integers(1, 5000), arrays.dtypes, arrays.seeds, arrays.isas)
def test_an_element_is_within_half_a_step_and_the_ends_are_exact(size, dtype, seed, isa):
    random = np.random.default_rng(seed)
    for x in (arrays.awkward(size, dtype, seed), spread(random, size, dtype)):
        payload, _ = kernels.bytegrad.compress(x, isa=isa)
        check_bound(x, kernels.bytegrad.decompress(payload, size, dtype, isa=isa))


@pytest.mark.parametrize("bits", [32, 64])
@given(st.data(), arrays.isas)
def test_so_it_is_for_any_finite_values(bits, data, isa):
    x = data.draw(wide(f"float{bits}"))
    payload, _ = kernels.bytegrad.compress(x, isa=isa)
    assert np.array_equal(arrays.used(payload), encode(x)[0])
    if x.size:
        check_bound(x, kernels.bytegrad.decompress(payload, x.size, x.dtype, isa=isa))


@arrays.each_isa
@arrays.each_dtype
def test_ranges_that_overflow_and_of_subnormals_lose_no_more_than_others(isa, dtype):
    info = np.finfo(dtype)
    steps = np.arange(-300, 301)
    for x in (
        np.linspace(-1, 1, 999) * info.max,
        steps * info.smallest_subnormal,
        steps[300:] * info.smallest_subnormal,
        1 + steps * info.eps,
        info.max * (1 - np.arange(4, 300) * info.eps),
    ):
        x = x.astype(dtype)
        payload, _ = kernels.bytegrad.compress(x, isa=isa)
        check_bound(x, kernels.bytegrad.decompress(payload, x.size, dtype, isa=isa))


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("size", [0, 1, 33, 1000])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e38, 1e-45])
def test_equal_elements_take_no_bytes_and_lose_nothing(isa, dtype, size, value):
    x = np.full(size, value, dtype)
    residual = np.zeros(size, dtype)
    payload, largest = kernels.bytegrad.compress(x, residual=residual, isa=isa)
    assert arrays.used(payload).size == 4 + 2 * x.itemsize
    assert np.array_equal(kernels.bytegrad.decompress(payload, size, dtype, isa=isa), x)
    assert not residual.any() and largest == np.abs(x).max(initial=0)


@arrays.each_isa
@arrays.each_dtype
def test_zeros_of_either_sign_are_one_value_wherever_they_are(isa, dtype):
    for x in ([0.0, -0.0], [-0.0, 0.0], [-0.0] * 40 + [0.0], [1, 0.0, -0.0], [-1, -0.0, 0.0]):
        x = np.array(x, dtype)
        payload, _ = kernels.bytegrad.compress(x, isa=isa)
        assert np.array_equal(arrays.used(payload), encode(np.abs(x) * np.sign(x))[0])


@arrays.each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(1, 0), (99, 0), (99, 40), (99, 98), (70_001, 69_999)])
def test_a_value_that_is_not_finite_makes_the_payload_and_the_largest_nans(
    isa, dtype, bad, size, at
):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    payload, largest = kernels.bytegrad.compress(x, residual=np.zeros(size, dtype), isa=isa)
    assert np.isnan(largest)
    assert np.isnan(kernels.bytegrad.decompress(payload, size, dtype, isa=isa)).all()


@arrays.each_isa
@arrays.each_dtype
def test_a_sum_with_feedback_that_overflows_is_not_finite(isa, dtype):
    x = np.full(40, np.finfo(dtype).max, dtype)
    _, largest = kernels.bytegrad.compress(x, residual=x.copy(), isa=isa)
    assert np.isnan(largest)


@arrays.each_isa
@arrays.each_dtype
def test_a_payload_that_has_another_length_than_it_must_is_refused(isa, dtype):
    x = np.arange(40, dtype=dtype)
    good, _ = kernels.bytegrad.compress(x, isa=isa)
    head = 4 + 2 * x.itemsize
    for length in (0, 3, head, head + 39, head + 41, 2**32 - 1):
        payload = good.copy()
        payload[:4] = np.array([length], np.uint32).view(np.uint8)
        for decode in (
            lambda p: kernels.bytegrad.decompress(p, 40, dtype, isa=isa),
            lambda p: kernels.bytegrad.decompress_add(p, x.copy(), isa=isa),
            lambda p: kernels.bytegrad.decompress_sum(p[None], 40, dtype, isa=isa),
        ):
            with pytest.raises(ValueError, match="payload must be one of 40 elements"):
                decode(payload)
    for length in (0, 3, head - 1, head, good.size - 1):
        assert not kernels.bytegrad.valid(good[:length], 40, dtype, isa=isa)


@given(st.data(), arrays.dtypes, arrays.isas, arrays.threads)
def test_whatever_payload_is_valid_is_decoded_within_its_bounds(data, dtype, isa, threads):
    n = data.draw(st.integers(0, 70))
    head = 4 + 2 * np.dtype(dtype).itemsize
    length = data.draw(st.sampled_from([head, head + n]))
    body = data.draw(st.binary(min_size=length - 4, max_size=length - 4))
    guarded = arrays.Guarded()
    payload = guarded.copy(np.frombuffer(np.array([length], np.uint32).tobytes() + body, np.uint8))
    lo, hi = payload[4:head].copy().view(dtype)
    assert kernels.bytegrad.valid(payload, n, dtype, isa=isa) == (
        length == (head + n if lo < hi else head)
    )
    if kernels.bytegrad.valid(payload, n, dtype, isa=isa):
        out = guarded.empty(n, dtype)
        kernels.bytegrad.decompress(payload, n, dtype, out=out, threads=threads, isa=isa)
    guarded.check()

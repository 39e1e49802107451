"""bytegrad: its replay in NumPy, its error bound, and its own tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gluon_gc import kernels
from tests.neutral.kernels import arrays
from tests.neutral.kernels.bindings import valid

from . import replay
from .cases import isas_of
from .replay import bytes_of

OPTIONS = [{}]

isas = isas_of("bytegrad")
each_isa = pytest.mark.parametrize("isa", isas)


class Steps:
    """The 255 steps from lo to hi in NumPy; lo < hi."""

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


class Replay(replay.Replay):
    """bytegrad in NumPy."""

    def encode(self, p):
        lo, hi = (p.min() + self.T(0), p.max() + self.T(0)) if p.size else (self.T(0), self.T(0))
        if lo == hi:
            q, decoded = np.empty(0, np.uint8), np.full_like(p, lo)
        else:
            steps = Steps(lo, hi)
            q = steps.nearest(p)
            decoded = steps.decode(q)
        length = np.array([4 + 2 * p.itemsize + q.size], np.uint32)
        return bytes_of(length, np.array([lo, hi]), q), decoded


def sent(x, isa=None):
    """Return the bytes in use of an array's payload, and the decoded values."""
    codec = kernels.Codec("bytegrad", {}, x.size, x.dtype, isa)
    payload, status = codec.compress(x)
    return payload[: status.bytes], codec.decompress(payload)[0]


def wide(dtype):
    """Return a strategy for finite values of every magnitude and bit pattern."""
    return npst.arrays(
        dtype,
        st.integers(0, 80),
        elements=st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False).filter(np.isfinite),
    )


def spread(random, size, dtype):
    """Return values whose range is between the smallest and the widest possible one."""
    info = np.finfo(dtype)
    low, high = np.log2(info.smallest_subnormal), info.maxexp
    centre, width = random.uniform(low, high - 1, 2)
    values = random.choice([-1, 0, 1]) * 2.0**centre + 2.0**width * random.uniform(-1, 1, size)
    return np.clip(values, info.min, info.max).astype(dtype)


def check_bound(x, out):
    """Check that each element is within half a step, plus rounding, of its decoded value."""
    info = np.finfo(x.dtype)
    exact = x.astype(np.longdouble)
    half_step = (exact.max() - exact.min()) / 255 / 2
    rounding = 2 * np.spacing(np.abs(x).max()).astype(np.longdouble)
    assert (np.abs(exact - out) <= half_step * (1 + 3 * 255 * info.eps) + rounding).all()
    assert x.min() == out.min() == out[x.argmin()]
    assert x.max() == out.max() == out[x.argmax()]


@given(st.integers(1, 5000), arrays.dtypes, arrays.seeds, st.sampled_from(isas))
def test_an_element_is_within_half_a_step_and_the_ends_are_exact(size, dtype, seed, isa):
    random = np.random.default_rng(seed)
    for x in (arrays.awkward(size, dtype, seed), spread(random, size, dtype)):
        check_bound(x, sent(x, isa)[1])


@pytest.mark.parametrize("bits", [32, 64])
@given(st.data(), st.sampled_from(isas))
def test_so_it_is_for_any_finite_values(bits, data, isa):
    x = data.draw(wide(f"float{bits}"))
    payload, out = sent(x, isa)
    assert np.array_equal(payload, Replay({}, x.size, x.dtype).encode(x)[0])
    if x.size:
        check_bound(x, out)


@each_isa
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
        check_bound(x, sent(x, isa)[1])


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("size", [0, 1, 33, 1000])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e38, 1e-45])
def test_equal_elements_take_no_bytes_and_lose_nothing(isa, dtype, size, value):
    x = np.full(size, value, dtype)
    codec = kernels.Codec("bytegrad", {"ef": "vanilla"}, size, dtype, isa)
    state = codec.state()
    payload, status = codec.compress(x, state)
    assert status.bytes == 4 + 2 * x.itemsize
    assert np.array_equal(codec.decompress(payload)[0], x)
    assert not codec.residual(state).any()


@each_isa
@arrays.each_dtype
def test_zeros_of_either_sign_are_one_value_wherever_they_are(isa, dtype):
    for x in ([0.0, -0.0], [-0.0, 0.0], [-0.0] * 40 + [0.0], [1, 0.0, -0.0], [-1, -0.0, 0.0]):
        x = np.array(x, dtype)
        positive = Replay({}, x.size, dtype).encode(x + dtype(0))[0]
        assert np.array_equal(sent(x, isa)[0], positive)


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size, at", [(1, 0), (99, 0), (99, 40), (99, 98), (70_001, 69_999)])
def test_a_value_that_is_not_finite_makes_all_that_is_decoded_nans(isa, dtype, bad, size, at):
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    x[at] = bad
    assert np.isnan(sent(x, isa)[1]).all()


@each_isa
@arrays.each_dtype
def test_a_sum_with_feedback_that_overflows_is_not_finite(isa, dtype):
    x = np.full(40, np.finfo(dtype).max, dtype)
    codec = kernels.Codec("bytegrad", {"ef": "vanilla"}, 40, dtype, isa)
    state = codec.state()
    codec.restore(state, x)
    assert not codec.compress(x, state)[1].finite


@each_isa
@arrays.each_dtype
def test_a_payload_that_has_another_length_than_it_must_is_refused(isa, dtype):
    codec = kernels.Codec("bytegrad", {}, 40, dtype, isa)
    payload, _ = codec.compress(np.arange(40, dtype=dtype))
    head = codec.payload_bytes - 40
    for length in (0, 3, head, head + 39, head + 41, 2**32 - 1):
        payload[:4] = np.array([length], np.uint32).view(np.uint8)
        assert not valid(codec, payload)


@given(st.data(), arrays.dtypes, st.sampled_from(isas))
def test_whether_there_are_bytes_follows_from_the_range(data, dtype, isa):
    n, itemsize = data.draw(st.integers(0, 70)), np.dtype(dtype).itemsize
    head = 4 + 2 * itemsize
    length = data.draw(st.sampled_from([head, head + n]))
    body = data.draw(st.binary(min_size=length - 4, max_size=length - 4))
    payload = np.frombuffer(np.array([length], np.uint32).tobytes() + body, np.uint8)
    lo, hi = payload[4:head].copy().view(dtype)
    codec = kernels.Codec("bytegrad", {}, n, dtype, isa)
    assert valid(codec, payload) == (length == (head + n if lo < hi else head))

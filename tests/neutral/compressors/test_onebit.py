"""onebit: its replay in NumPy, and its own tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels
from tests.neutral.kernels import arrays, sums

from . import golden, replay
from .cases import isas_of
from .replay import bytes_of

OPTIONS = [{"scaling": True}, {"scaling": False}, {}]
PARAMS = {"onebit": {"scaling": True}, "onebit unscaled": {"scaling": False}}
WORD = 32

isas = isas_of("onebit")
each_isa = pytest.mark.parametrize("isa", isas)


class Replay(replay.Replay):
    """onebit in NumPy."""

    def encode(self, p):
        mean = sums.magnitudes(p) / p.size if p.size else 0.0
        scale = self.T(mean if self.options.get("scaling") else 1)
        bits = np.packbits(np.pad(p < 0, (0, -p.size % WORD)), bitorder="little")
        return bytes_of(bits, np.array([scale])), np.where(p < 0, -scale, scale)


def sent(x, isa=None, **options):
    """Return the decoded values, and the payload."""
    codec = kernels.Codec("onebit", {"scaling": True, **options}, x.size, x.dtype, isa)
    payload, _ = codec.compress(x)
    return codec.decompress(payload)[0], payload


@given(st.integers(0, 5000), arrays.dtypes, arrays.seeds, st.sampled_from(isas))
def test_with_scaling_it_contracts_as_the_paper_says(size, dtype, seed, isa):
    x = arrays.awkward(size, dtype, seed)
    out = sent(x, isa)[0].astype(np.longdouble)
    exact = x.astype(np.longdouble)
    square, magnitude = np.sum(exact**2), np.sum(np.abs(exact))
    if square > 0:
        delta = magnitude**2 / (size * square)
        assert np.sum((exact - out) ** 2) <= (1 - delta) * square + 1e-6 * square


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("n", [1023, 1024, 1025, 16_384, 32_769, 2**20, 2**20 + 12_345])
def test_the_scale_is_the_mean_by_the_fixed_tree_of_sums(isa, dtype, n):
    x = arrays.awkward(n, dtype, 3)
    scale = dtype(sums.magnitudes(x) / n)
    for threads in (1, 3):
        codec = kernels.Codec("onebit", {"scaling": True}, n, dtype, isa)
        payload, _ = codec.compress(x, threads=threads)
        assert payload[-x.itemsize :].tobytes() == scale.tobytes()


def test_the_tree_is_not_a_sum_from_left_to_right():
    x = np.random.default_rng(0).random(5000)
    assert sums.tree_sum(x) == pytest.approx(x.sum()) and sums.tree_sum(x) != np.cumsum(x)[-1]
    assert sums.tree_sum(np.arange(2000)) == 1999 * 1000


@each_isa
def test_a_sum_starts_from_the_first_payload_itself_so_that_minus_zero_stays(isa):
    _, payload = sent(np.full(40, -1, np.float32))
    payload.view(np.float32)[-1] = 0
    out, _ = kernels.Codec("onebit", {}, 40, isa=isa).decompress(payload)
    assert np.signbit(out).all() and (out == 0).all()


@each_isa
@arrays.each_dtype
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 40, 98])
@pytest.mark.parametrize("scaling", [False, True])
def test_any_value_that_is_not_finite_makes_all_that_is_decoded_nans(isa, dtype, bad, at, scaling):
    x = np.ones(99, dtype)
    x[at] = bad
    out, _ = sent(x, isa, scaling=scaling)
    assert np.isnan(out).all()


@each_isa
@arrays.each_dtype
def test_zeros_of_both_signs_decode_to_plus_the_scale(isa, dtype):
    out, _ = sent(np.array([0.0, -0.0, 2.0, -1.0], dtype), isa, scaling=False)
    assert out.tolist() == [1, 1, 1, -1]


@each_isa
def test_the_largest_floats_do_not_overflow_the_sum_and_the_smallest_are_not_lost(isa):
    for value in np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal:
        assert (sent(np.full(100_000, -value), isa)[0] == -value).all()


@pytest.mark.parametrize("scaling, scale", [(True, 0.0), (False, 1.0)])
def test_a_payload_of_no_elements_is_its_scale_alone(scaling, scale):
    _, payload = sent(np.empty(0, np.float32), scaling=scaling)
    assert payload.view(np.float32).tolist() == [scale]


@each_isa
@pytest.mark.parametrize("run", golden.runs("onebit"), ids=golden.name_of)
def test_four_steps_with_feedback_decode_to_byteps_numbers(run, isa):
    codec = kernels.Codec("onebit", {"scaling": True, **run.options}, run.size, isa=isa)
    state = codec.state()
    for expected, ratio in run.steps():
        payload, _ = codec.compress(expected["g"], state, ratio=ratio)
        np.testing.assert_array_max_ulp(codec.decompress(payload)[0], expected["d"], 2)

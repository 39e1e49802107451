"""Checks for finite values, and the sum of squares, compared with NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc import kernels

from . import arrays, sums

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
BAD = st.sampled_from([None, np.nan, -np.nan, np.inf, -np.inf])


@given(arrays.sizes, arrays.seeds, FLOATS, BAD, arrays.isas, arrays.threads, arrays.offsets)
def test_one_value_that_is_not_finite_is_found_wherever_it_is(
    size, seed, dtype, bad, isa, threads, offset
):
    guarded = arrays.Guarded(offset)
    with np.errstate(over="ignore"):
        x = guarded.copy(arrays.awkward(size, np.float32, seed).astype(dtype))
    x[~np.isfinite(x)] = np.finfo(dtype).max
    if size and bad is not None:
        x[np.random.default_rng(seed).integers(size)] = bad
    assert kernels.values_finite(x, isa=isa, threads=threads) == np.isfinite(x).all()
    guarded.check()


@arrays.each_isa
def test_every_half_is_told_right(isa):
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = [kernels.values_finite(halves[i : i + 1], isa=isa) for i in range(halves.size)]
    np.testing.assert_array_equal(finite, np.isfinite(halves))


@given(arrays.sizes, arrays.seeds, arrays.dtypes, arrays.isas, arrays.threads, arrays.offsets)
def test_squares_are_summed_in_the_fixed_tree(size, seed, dtype, isa, threads, offset):
    guarded = arrays.Guarded(offset)
    x = guarded.copy(np.random.default_rng(seed).standard_normal(size).astype(dtype))
    expected = sums.tree_sum(x.astype(np.float64) ** 2)
    assert kernels.sum_of_squares(x, isa=isa, threads=threads) == expected
    guarded.check()


def test_many_equal_squares_do_not_stop_a_sum_from_growing():
    assert kernels.sum_of_squares(np.full(2**25, 2.0, np.float32)) == 2**27


def test_integers_are_refused():
    with pytest.raises(TypeError, match="x must be float16, float32 or float64, got int32"):
        kernels.values_finite(np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="x must be float32 or float64, got int32"):
        kernels.sum_of_squares(np.zeros(3, np.int32))

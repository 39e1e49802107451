"""Sums and averages of integers, which are exact in every dtype."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_gc.kernels import integers

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@st.composite
def workers(draw):
    """The arrays of several workers, all of one dtype."""
    info = np.iinfo(draw(st.sampled_from(DTYPES)))
    edges = st.sampled_from([info.min, info.max, 0, 1])
    values = st.integers(int(info.min), int(info.max)) | edges
    count, size = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rows = draw(
        st.lists(st.lists(values, min_size=size, max_size=size), min_size=count, max_size=count)
    )
    return [np.array(row, info.dtype) for row in rows]


def sums_of(arrays):
    return [sum(parts) for parts in zip(*map(integers.summands, arrays))]


@given(workers())
def test_they_are_what_pythons_integers_give(arrays):
    dtype, count = arrays[0].dtype, len(arrays)
    exact = [sum(column) for column in zip(*(array.tolist() for array in arrays))]
    averages = integers.average(sums_of(arrays), count, dtype)
    assert averages.dtype == dtype
    assert averages.tolist() == [abs(s) // count * (1 if s >= 0 else -1) for s in exact]
    floats = integers.as_floats(sums_of(arrays))
    np.testing.assert_allclose(floats, [float(s) for s in exact], rtol=1e-15)
    info = np.iinfo(dtype)
    if all(info.min <= s <= info.max for s in exact):
        totals = integers.total(sums_of(arrays), dtype, "it")
        assert totals.dtype == dtype and totals.tolist() == exact
    else:
        with pytest.raises(
            OverflowError, match=f"sum of it over all workers must be in .* {dtype}"
        ):
            integers.total(sums_of(arrays), dtype, "it")
